//! The arguments that several commands have, as COMMAND DOCS shows them.

use crate::server::Argument;

pub const KEY: Argument = Argument::key(c"key");
pub const WINDOW: Argument = Argument::double(c"windowSec");
pub const LIMIT: Argument = Argument::integer(c"limit");
pub const QUOTAS: Argument = Argument::block(c"quota", &[WINDOW, LIMIT]).repeated();
pub const COST: Argument = Argument::integer(c"cost").with_token(c"COST").optional();
pub const FORCE: Argument = Argument::token(c"force", c"FORCE").optional();
pub const ANCHORED: Argument = Argument::token(c"anchored", c"ANCHORED").optional();
pub const HOLDER: Argument = Argument::string(c"holder");
pub const FULL: Argument = Argument::token(c"full", c"FULL").optional();
pub const DETAIL: Argument =
    Argument::one_of(c"detail", &[Argument::token(c"full", c"FULL"), Argument::token(c"each", c"EACH")]).optional();
