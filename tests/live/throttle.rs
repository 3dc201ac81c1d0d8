pub const TESTS: &[crate::Test] = &[];
