//! A list of one or more. Nearly always it is one, so the first lies by itself and needs no allocation.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Several<T> {
    pub first: T,
    pub more: Vec<T>,
}

impl<T> Several<T> {
    pub const fn one(first: T) -> Self {
        Self { first, more: Vec::new() }
    }

    pub fn push(&mut self, next: T) {
        self.more.push(next);
    }

    pub fn len(&self) -> usize {
        self.more.len().saturating_add(1)
    }

    pub fn last(&self) -> &T {
        self.more.last().unwrap_or(&self.first)
    }

    /// The element, if it is the only one.
    pub fn single(&self) -> Option<&T> {
        self.more.is_empty().then_some(&self.first)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// A list of what `make` makes of each element, unless it fails for one of them.
    pub fn try_map<U, E>(&self, mut make: impl FnMut(&T) -> Result<U, E>) -> Result<Several<U>, E> {
        let mut made = Several::one(make(&self.first)?);
        for element in &self.more {
            made.push(make(element)?);
        }
        Ok(made)
    }
}
