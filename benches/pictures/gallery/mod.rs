//! The pictures: each file plays a scene and draws it.

mod boundary;
mod burst;
mod canvas;
mod leases;
mod stage;
mod steps;
mod timeline;
mod tokens;

use std::path::PathBuf;

use crate::support::{Engine, root};

/// Draws a picture: the text of an SVG.
type Draw = fn(&Engine) -> String;

pub const PICTURES: [(&str, Draw); 4] = [
    ("burst.svg", burst::draw),
    ("boundary.svg", boundary::draw),
    ("tokens.svg", tokens::draw),
    ("leases.svg", leases::draw),
];

pub fn folder() -> PathBuf {
    root().join("docs/pictures")
}
