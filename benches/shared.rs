//! What the benches share: the command line, and the sections of pages that they write.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::str::FromStr;

use lexopt::prelude::*;

use super::support::{Client, Engine, engine::version, root};

/// The options of the command line, each with its value.
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// Reads these options, of which the `flags` have no value.
    pub fn read(known: &[&str], flags: &[&str]) -> Result<Self, lexopt::Error> {
        let (mut options, mut parser) = (BTreeMap::new(), lexopt::Parser::from_env());
        while let Some(argument) = parser.next()? {
            match argument {
                Long("bench") => {} // cargo's own.
                Long(name) if flags.contains(&name) => drop(options.insert(name.to_owned(), String::new())),
                Long(name) if known.contains(&name) => {
                    let name = name.to_owned();
                    options.insert(name, parser.value()?.string()?);
                }
                other => return Err(other.unexpected()),
            }
        }
        Ok(Self(options))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn value<T: FromStr>(&self, name: &str, unless_given: T) -> Result<T, String> {
        let wrong = |text| format!("--{name} cannot be '{text}'");
        self.get(name).map_or(Ok(unless_given), |text| text.parse().map_err(|_| wrong(text)))
    }

    /// The engine of that name, or the first one of tests/engines.tsv that is here.
    pub fn engine(&self) -> Result<Engine, String> {
        let found = Engine::pick(self.get("engine"));
        found.ok_or_else(|| "that engine is not here: `make engines` fetches it".to_owned())
    }
}

/// An engine with its version.
pub fn told(engine: &Engine) -> String {
    format!("{} ({})", engine.name, engine.program.as_deref().and_then(version).unwrap_or_default())
}

/// The sum of fields of INFO cpu: seconds of processor time.
pub fn processor_time(client: &mut Client, fields: [&str; 2]) -> f64 {
    fields.map(|field| client.info_field("cpu", field).parse::<f64>().expect("seconds")).iter().sum()
}

/// Puts the section of this name, which `make COMMAND` writes, into a page.
pub fn put(name: &str, command: &str, page: &str, text: &str) {
    let mut script = Command::new(root().join("scripts/page-section.sh"));
    script.args([name, command, page]).current_dir(root()).stdin(Stdio::piped());
    let mut script = script.spawn().expect("scripts/page-section.sh");
    script.stdin.take().expect("its input").write_all(text.as_bytes()).expect("a section that is taken");
    assert!(script.wait().expect("its end").success(), "scripts/page-section.sh failed");
}
