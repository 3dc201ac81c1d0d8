//! The servers of tests/engines.tsv that this machine has.

use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, Clone)]
pub struct Engine {
    pub name: String,
    /// `None` where this machine lacks it.
    pub program: Option<PathBuf>,
    /// Whether its servers store new sliding logs in the compact form.
    pub compact: bool,
}

const REDIS_6_2: &str = "redis-6.2";

impl Engine {
    /// Every engine that can load the module: those of the table, and the system's own server if it is in no row.
    pub fn all() -> Vec<Self> {
        let mut system: Vec<(PathBuf, String)> = ["redis-server", "valkey-server"]
            .into_iter()
            .filter_map(|program| Some((in_path(program)?, version(&in_path(program)?)?)))
            .filter(|(_, version)| version.split('.').next().and_then(|major| major.parse().ok()) >= Some(7))
            .collect();
        let table = include_str!("../engines.tsv")
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty() && !line.starts_with(REDIS_6_2));
        let mut engines: Vec<Self> = table
            .map(|row| {
                let [name, _source, program, wanted, _image] = row.split('\t').collect::<Vec<_>>()[..] else {
                    panic!("engines.tsv: five columns are needed: {row}");
                };
                let fetched = cache().join(name).join("server");
                let own =
                    system.iter().position(|(path, version)| path.ends_with(program) && version.starts_with(wanted));
                let own = own.map(|index| system.remove(index).0);
                Self {
                    name: name.to_owned(),
                    program: Some(fetched).filter(|path| path.is_file()).or(own),
                    compact: false,
                }
            })
            .collect();
        engines.extend(system.into_iter().map(|(path, version)| Self {
            name: format!("system-{version}"),
            program: Some(path),
            compact: false,
        }));
        engines
    }

    /// Redis 6.2, if it is here. It cannot load the module.
    #[allow(dead_code)] // The tests'.
    pub fn redis_6_2() -> Option<Self> {
        let program = cache().join(REDIS_6_2).join("server");
        program.is_file().then(|| Self { name: REDIS_6_2.to_owned(), program: Some(program), compact: false })
    }

    /// The engine of that name, or the first one that this machine has.
    #[allow(dead_code)] // The benchmark's.
    pub fn pick(name: Option<&str>) -> Option<Self> {
        Self::all().into_iter().find(|engine| engine.program.is_some() && name.is_none_or(|name| engine.name == name))
    }

    /// The same, with compact storage.
    #[allow(dead_code)] // The tests'.
    pub fn compact(&self) -> Self {
        Self { compact: true, ..self.clone() }
    }

    pub fn is_redis_6_2(&self) -> bool {
        self.name == REDIS_6_2
    }

    /// Redis 7.0, which lacks some of what later servers have.
    pub fn is_redis_7_0(&self) -> bool {
        self.name.contains("-7.0")
    }

    /// Whether modules can have an ACL category of their own.
    pub fn has_categories_of_modules(&self) -> bool {
        !self.is_redis_7_0() && !self.name.contains("-7.2")
    }

    /// Whether replicas in a cluster know that a slot is being moved to another node.
    #[allow(dead_code)] // The tests'.
    pub fn tells_replicas_of_moves(&self) -> bool {
        self.name.starts_with("valkey-") && !self.name.contains("-7.2")
    }

    /// Between two reads of the wall clock Valkey 9 counts microseconds by itself. They go on while the frozen clock stands
    /// still, and RL.THROTTLE uses them.
    pub fn counts_microseconds(&self) -> bool {
        self.name.starts_with("valkey-9")
    }

    /// Whether the rules of the ACL can name databases.
    #[allow(dead_code)] // The tests'.
    pub fn has_rules_for_databases(&self) -> bool {
        self.name.starts_with("valkey-9") && !self.name.contains("-9.0")
    }

    /// Whether the server can move a slot as a whole: Redis from 8.4 on, and Valkey from 9.0.
    pub fn moves_slots_atomically(&self) -> bool {
        let is_too_old = self.name.ends_with("-8.0") || self.name.ends_with("-8.2");
        self.name.starts_with("redis-8") && !is_too_old || self.name.starts_with("valkey-9")
    }
}

fn cache() -> PathBuf {
    if let Some(cache) = std::env::var_os("REDIS_RL_ENGINES") {
        return cache.into();
    }
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from).join(".cache");
    base.unwrap_or_else(home).join("redis-rl/engines")
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// `7.0.15` of `Redis server v=7.0.15 sha=…`.
pub fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().find_map(|word| word.strip_prefix("v=")).map(str::to_owned)
}
