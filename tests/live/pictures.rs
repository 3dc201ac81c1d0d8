//! The pictures of docs/pictures show what this code does: played and drawn again, on every engine, each has the same bytes.

use crate::support::Engine;
use crate::tests;

#[path = "../../benches/pictures/gallery/mod.rs"]
mod gallery;

tests![the_pictures_are_those_of_this_code];

fn the_pictures_are_those_of_this_code(engine: &Engine) {
    let mut drawn: Vec<String> = Vec::new();
    for (name, draw) in gallery::PICTURES {
        let there = std::fs::read_to_string(gallery::folder().join(name)).unwrap_or_default();
        assert!(
            draw(engine) == there,
            "docs/pictures/{name} is not what is drawn now: `make pictures`, and look at it"
        );
        drawn.push(name.to_owned());
    }
    let mut there: Vec<String> = std::fs::read_dir(gallery::folder())
        .expect("docs/pictures")
        .map(|entry| entry.expect("a picture").file_name().into_string().expect("a plain name"))
        .collect();
    there.sort();
    drawn.sort();
    assert_eq!(there, drawn, "docs/pictures has a file that no test draws");
}
