//! YAML as the configurations of Envoy's rate limit service are written: the first document of a file, by the types of
//! YAML 1.1 (`yes` is true, `010` is eight, `<<` merges), which is what its parser has always read.
//!
//! The syntax is the parser's of `saphyr-parser`; what a scalar means is decided here. A node knows its line, so that a
//! refusal can name the place.

use std::collections::HashMap;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub line: usize,
    pub reason: String,
}

impl Refusal {
    pub fn new(line: usize, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// Nested deeper than this, a file is refused: reading is recursive. Configurations have a handful of levels.
const DEEPEST: usize = 200;
/// An alias repeats what it stands for, and aliases of aliases multiply. No configuration comes near this. Each of these bytes
/// of a text counts as a node.
const MOST_NODES: usize = 1_000_000;
const BYTES: usize = 64;

/// How the parser refuses a tab between a key's colon and its value.
const TAB: &str = "not YAML: ':' must be followed by a valid YAML whitespace";

#[derive(Debug)]
pub struct Node {
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    Scalar {
        text: String,
        scalar: Scalar,
    },
    List(Vec<Rc<Node>>),
    /// In the order of the file, keys given twice included.
    Map(Vec<Pair>),
}

pub type Pair = (Rc<Node>, Rc<Node>);

#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above the largest of 64 bits with a sign.
    Large(u64),
    Float(f64),
    Text,
    /// `<<` as a key.
    Merge,
}

impl Node {
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar { scalar: Scalar::Null, .. } => "null".to_owned(),
            Kind::Scalar { text, .. } => format!("'{text}'"),
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
        }
    }

    pub fn refuse(&self, wanted: &str) -> Refusal {
        Refusal::new(self.line, format!("{wanted}, not {}", self.describe()))
    }

    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Scalar { scalar: Scalar::Null, .. })
    }

    /// The pairs of a map in which merge keys are replaced by what they merge, in the order in which they count: of a
    /// key given twice, the last one does.
    pub fn pairs(&self) -> Result<Vec<Pair>, Refusal> {
        let mut pairs = Vec::new();
        self.collect(&mut pairs)?;
        Ok(pairs)
    }

    fn collect(&self, pairs: &mut Vec<Pair>) -> Result<(), Refusal> {
        let Kind::Map(own) = &self.kind else {
            return Err(self.refuse("a map is needed here"));
        };
        for (key, value) in own {
            match (&key.kind, &value.kind) {
                (Kind::Scalar { scalar: Scalar::Merge, .. }, Kind::List(maps)) => {
                    // The earlier ones of a list win.
                    for map in maps.iter().rev() {
                        map.collect(pairs)?;
                    }
                }
                (Kind::Scalar { scalar: Scalar::Merge, .. }, _) => value.collect(pairs)?,
                _ => pairs.push((Rc::clone(key), Rc::clone(value))),
            }
        }
        Ok(())
    }
}

/// Reads the first document. `None` if the text has no document.
pub fn parse(text: &str) -> Result<Option<Rc<Node>>, Refusal> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in text.split('\n').enumerate() {
        if let Some(c) = line.chars().find(|c| c.is_control() && !matches!(c, '\t' | '\r' | '\u{85}')) {
            return Err(Refusal::new(number + 1, format!("the control character U+{:04X}", u32::from(c))));
        }
    }
    let document = first_document(text, |_| ());
    if !document.as_ref().is_err_and(|refusal| refusal.reason == TAB) {
        return document;
    }
    // YAML 1.1 allows such a tab. All that may be one become spaces, but for those that then turn out to be within a scalar.
    let mut chars: Vec<char> = text.chars().collect();
    let (mut tabs, mut behind_colon) = (Vec::new(), false);
    for (at, c) in chars.iter_mut().enumerate() {
        behind_colon = *c == ':' || behind_colon && *c == '\t';
        if behind_colon && *c == '\t' {
            *c = ' ';
            tabs.push(at);
        }
    }
    let mut within: Vec<usize> = Vec::new();
    let found = |span: Span| {
        let (start, end) = (tabs.partition_point(|at| *at < span.start.index()), span.end.index());
        within.extend(tabs[start..].iter().take_while(|at| **at < end));
    };
    // If it is refused, it is refused again.
    let _ = first_document(&chars.iter().collect::<String>(), found);
    for at in within {
        chars[at] = '\t';
    }
    first_document(&chars.iter().collect::<String>(), |_| ())
}

/// `scalar` is told where each scalar stands.
fn first_document(text: &str, scalar: impl FnMut(Span)) -> Result<Option<Rc<Node>>, Refusal> {
    let mut reader = Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), nodes: 0, line: 1, scalar };
    loop {
        match reader.next()? {
            Event::StreamEnd => return Ok(None),
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            event => return reader.node(event, 0).map(Some),
        }
    }
}

struct Reader<'input, S> {
    parser: Parser<'input, saphyr_parser::StrInput<'input>>,
    anchors: HashMap<usize, (Rc<Node>, usize)>,
    nodes: usize,
    line: usize,
    scalar: S,
}

impl<'input, S: FnMut(Span)> Reader<'input, S> {
    fn next(&mut self) -> Result<Event<'input>, Refusal> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                if let Event::Scalar(..) = event {
                    (self.scalar)(span);
                }
                Ok(event)
            }
            Some(Err(error)) => Err(Refusal::new(error.marker().line(), format!("not YAML: {}", error.info()))),
            None => Ok(Event::StreamEnd),
        }
    }

    fn node(&mut self, event: Event<'input>, depth: usize) -> Result<Rc<Node>, Refusal> {
        let line = self.line;
        let before = self.nodes;
        self.count(1)?;
        if depth > DEEPEST {
            return Err(Refusal::new(line, format!("nested deeper than {DEEPEST} levels")));
        }
        let (anchor, kind) = match event {
            Event::Alias(id) => {
                let (node, size) = self
                    .anchors
                    .get(&id)
                    .cloned()
                    .ok_or_else(|| Refusal::new(line, "an alias of something that is not complete yet"))?;
                self.count(size)?;
                return Ok(node);
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(text.len() / BYTES)?;
                let scalar = resolve(&text, style == ScalarStyle::Plain, tag.as_deref(), line)?;
                (anchor, Kind::Scalar { text: text.into_owned(), scalar })
            }
            Event::SequenceStart(anchor, _) => (anchor, Kind::List(self.items(depth + 1)?)),
            Event::MappingStart(anchor, _) => {
                let (mut items, mut pairs) = (self.items(depth + 1)?.into_iter(), Vec::new());
                while let (Some(key), Some(value)) = (items.next(), items.next()) {
                    pairs.push((key, value));
                }
                (anchor, Kind::Map(pairs))
            }
            other => return Err(Refusal::new(line, format!("unexpected {other:?}"))),
        };
        let node = Rc::new(Node { line, kind });
        if anchor != 0 {
            self.anchors.insert(anchor, (Rc::clone(&node), self.nodes - before));
        }
        Ok(node)
    }

    /// Those of a list, or keys and values of a map.
    fn items(&mut self, depth: usize) -> Result<Vec<Rc<Node>>, Refusal> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                Event::SequenceEnd | Event::MappingEnd => return Ok(items),
                event => items.push(self.node(event, depth)?),
            }
        }
    }

    fn count(&mut self, nodes: usize) -> Result<(), Refusal> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MOST_NODES {
            return Err(Refusal::new(self.line, "the aliases of the document repeat too much"));
        }
        Ok(())
    }
}

fn resolve(text: &str, plain: bool, tag: Option<&Tag>, line: usize) -> Result<Scalar, Refusal> {
    let Some(tag) = tag else {
        return Ok(if plain { implicit(text) } else { Scalar::Text });
    };
    if !tag.is_yaml_core_schema() {
        return Ok(Scalar::Text);
    }
    let scalar = implicit(text);
    match (tag.suffix.as_str(), &scalar) {
        ("float", Scalar::Int(integer)) => Ok(Scalar::Float(*integer as f64)),
        ("bool", Scalar::Bool(_))
        | ("int", Scalar::Int(_) | Scalar::Large(_))
        | ("float", Scalar::Float(_))
        | ("null", Scalar::Null)
        | ("merge", Scalar::Merge)
        | ("timestamp", Scalar::Text) => Ok(scalar),
        ("bool" | "int" | "float" | "null" | "merge" | "timestamp" | "binary", _) => {
            Err(Refusal::new(line, format!("'{text}' is not what its tag !!{} says", tag.suffix)))
        }
        // Other tags mean nothing here.
        _ => Ok(Scalar::Text),
    }
}

/// What plain text means in YAML 1.1.
fn implicit(text: &str) -> Scalar {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Scalar::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Scalar::Bool(false);
        }
        ".nan" | ".NaN" | ".NAN" => return Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => return Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => return Scalar::Float(f64::NEG_INFINITY),
        "<<" => return Scalar::Merge,
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Scalar::Text;
    }
    if text.starts_with('.') {
        return float(text).unwrap_or(Scalar::Text);
    }
    let digits: String = text.chars().filter(|c| *c != '_').collect();
    integer(&digits).or_else(|| float(&digits)).unwrap_or(Scalar::Text)
}

/// Decimal, `0x`, `0o`, `0b`, and octal with a leading zero.
fn integer(text: &str) -> Option<Scalar> {
    let magnitude = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (radix, digits) = match magnitude.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &magnitude[2..]),
        [b'0', b'o' | b'O', ..] => (8, &magnitude[2..]),
        [b'0', b'b' | b'B', ..] => (2, &magnitude[2..]),
        [b'0', _, ..] => (8, &magnitude[1..]),
        _ => (10, magnitude),
    };
    // from_str_radix would take a second sign.
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    let number = if text.starts_with('-') { -magnitude } else { magnitude };
    i64::try_from(number).map(Scalar::Int).or_else(|_| u64::try_from(number).map(Scalar::Large)).ok()
}

fn float(text: &str) -> Option<Scalar> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let number = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    // "inf", "nan" and the like are text; so is "1.2.3", which does not parse.
    if !unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') || !unsigned.chars().all(number) {
        return None;
    }
    // What is too large for a double is text, too.
    text.parse().ok().filter(|number: &f64| number.is_finite()).map(Scalar::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(text: &str) -> Scalar {
        match &parse(text).unwrap().unwrap().kind {
            Kind::Scalar { scalar, .. } => scalar.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_first_document_counts() {
        assert_eq!(scalar("1\n---\n: : [\n"), Scalar::Int(1));
        assert!(parse("# nothing\n").unwrap().is_none());
        assert_eq!(scalar("\u{feff}1"), Scalar::Int(1));
    }

    #[test]
    fn later_pairs_count_and_merges_stand_where_they_are() {
        let node = parse("a: &a {x: 1, y: 2}\nb: {x: 3, <<: *a, y: 4}\n").unwrap().unwrap();
        let b = &node.pairs().unwrap()[1].1;
        let texts: Vec<_> = b.pairs().unwrap().iter().map(|(key, value)| key.describe() + &value.describe()).collect();
        assert_eq!(texts, ["'x''3'", "'x''1'", "'y''2'", "'y''4'"]);
    }

    #[test]
    fn tabs_may_stand_behind_a_colon() {
        for text in ["a:\tb\nc: \"x:\ty\"", "a:\t\tb\nc: 'x:\ty'", "{a:\tb,\tc:\t\"x:\ty\"}"] {
            let pairs = parse(text).unwrap().unwrap().pairs().unwrap();
            let texts: Vec<_> = pairs.iter().map(|(key, value)| key.describe() + &value.describe()).collect();
            assert_eq!(texts, ["'a''b'", "'c''x:\ty'"], "{text}");
        }
        assert!(parse("a:\t- b").is_err());
        // However many there are: reading them takes no longer than reading as many spaces does, twice.
        let many: String = (0..20_000).map(|number| format!("k{number}:\tv\n")).collect();
        assert_eq!(parse(&many).unwrap().unwrap().pairs().unwrap().len(), 20_000);
    }

    #[test]
    fn what_is_no_yaml_or_too_much_is_refused() {
        for text in ["'''", "a: [1", "a: *b", "a: &a [*a]", "!!int x", "a: \u{1}"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
        let mut bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{},", level - 1);
            bomb += &format!("a{level}: &a{level} [{}]\n", below.repeat(10));
        }
        assert!(parse(&bomb).unwrap_err().reason.contains("repeat"));
        // Few, and long.
        let long = "x".repeat(1_000_000);
        assert!(parse(&format!("a: &a {long}\nb: [{}]\n", "*a,".repeat(3000))).unwrap_err().reason.contains("repeat"));
        assert!(parse(&format!("a: &a {long}\nb: [*a, {}]\n", format!("{long},").repeat(10))).is_ok());
    }

    #[test]
    fn scalars_are_those_of_yaml_1_1() {
        for (text, wanted) in [
            ("yes", Scalar::Bool(true)),
            ("On", Scalar::Bool(true)),
            ("n", Scalar::Bool(false)),
            ("'yes'", Scalar::Text),
            ("yEs", Scalar::Text),
            ("010", Scalar::Int(8)),
            ("09", Scalar::Float(9.0)),
            ("0x1F", Scalar::Int(31)),
            ("0b101", Scalar::Int(5)),
            ("1_000", Scalar::Int(1000)),
            ("-1_0", Scalar::Int(-10)),
            ("+5", Scalar::Int(5)),
            ("-9223372036854775808", Scalar::Int(i64::MIN)),
            ("18446744073709551615", Scalar::Large(u64::MAX)),
            ("1.5", Scalar::Float(1.5)),
            ("1e3", Scalar::Float(1000.0)),
            ("1.2.3", Scalar::Text),
            ("2001-01-01", Scalar::Text),
            ("10/second", Scalar::Text),
            ("~", Scalar::Null),
            ("NULL", Scalar::Null),
            ("!!str 5", Scalar::Text),
            ("!!float 5", Scalar::Float(5.0)),
            ("!own 5", Scalar::Text),
            (".inf", Scalar::Float(f64::INFINITY)),
            ("1e400", Scalar::Text),
            ("._5", Scalar::Text),
            ("1_.5", Scalar::Float(1.5)),
            ("!!map d", Scalar::Text),
            ("infinity", Scalar::Text),
        ] {
            assert_eq!(scalar(text), wanted, "{text}");
        }
    }
}
