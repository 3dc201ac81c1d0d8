//! Draws the pictures of docs/pictures. Each is a scene that is played on a live server with a controlled clock, and drawn from the
//! server's replies. The output is deterministic; the live test `pictures` compares it with the committed files. `make pictures`
//! runs this.

#[path = "../../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

mod gallery;

use support::Engine;

fn main() {
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let name = match (words.next().as_deref(), words.next(), words.next()) {
        (None, ..) => None,
        (Some("--engine"), Some(name), None) => Some(name),
        _ => {
            eprintln!("options: --engine NAME    a server of tests/engines.tsv");
            std::process::exit(2);
        }
    };
    let Some(engine) = Engine::pick(name.as_deref()) else {
        eprintln!("that engine is not here: `make engines` fetches it");
        std::process::exit(1);
    };
    let folder = gallery::folder();
    std::fs::create_dir_all(&folder).expect("docs/pictures");
    for (name, draw) in gallery::PICTURES {
        std::fs::write(folder.join(name), draw(&engine)).unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("docs/pictures/{name}");
    }
}
