//! The reference of the environment, docs/ENVIRONMENT.md, which tests compare with what `settings.rs` reads.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use crate::settings::WITHOUT_EFFECT;
    use crate::testing::settings;

    const REFERENCE: &str = include_str!("../../../docs/ENVIRONMENT.md");

    /// The rows of the tables before the heading of those without effect, or behind it: the name, and what stands beside it.
    fn rows(without_effect: bool) -> BTreeMap<&'static str, &'static str> {
        let (with, without) = REFERENCE.split_once("## Without effect").unwrap();
        let lines = if without_effect { without } else { with }.lines();
        let rows: Vec<_> = lines.filter_map(|line| line.strip_prefix("| `")?.split_once("` | ")).collect();
        assert_eq!(
            rows.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(),
            rows.len(),
            "one stands there twice"
        );
        rows.into_iter().collect()
    }

    #[test]
    fn every_variable_that_is_read_is_described() {
        let (source, _) = include_str!("../settings.rs").split_once("#[cfg(test)]").unwrap();
        let (before, rest) = source.split_once("const WITHOUT_EFFECT").unwrap();
        let (_, after) = rest.split_once("];").unwrap();
        let values = ["TRUE", "FALSE", "FILE", "GRPC_XDS_SOTW", "SINGLE", "SENTINEL", "CLUSTER", "WARN"];
        let literals = before.split('"').skip(1).step_by(2).chain(after.split('"').skip(1).step_by(2));
        let read: BTreeSet<_> = literals
            .filter(|text| text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
            .filter(|text| !values.contains(text))
            .collect();
        assert_eq!(read, rows(false).into_keys().collect());
    }

    #[test]
    fn what_has_no_effect_is_described() {
        let shown = |(name, why): (&str, &str)| {
            let more = if name.ends_with('_') { "…" } else { "" };
            (format!("{name}{more}"), format!("{why} |"))
        };
        let described = rows(true).into_iter().map(|(name, why)| (name.to_owned(), why.to_owned()));
        assert_eq!(described.collect::<BTreeMap<_, _>>(), WITHOUT_EFFECT.into_iter().map(shown).collect());
    }

    #[test]
    fn the_defaults_are_those_of_the_settings() {
        // What is read only where something else is set.
        let bases: [&[(&str, &str)]; 4] = [
            &[],
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")],
            &[("USE_STATSD", "false"), ("USE_PROMETHEUS", "true")],
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        ];
        for base in bases {
            let wanted = format!("{:?}", settings(base));
            for (name, rest) in rows(false).into_iter().filter(|(name, _)| base.iter().all(|(set, _)| set != name)) {
                let default = rest.split(" | ").next().unwrap().trim_matches(['`', ' ', '|']);
                let with = format!("{:?}", settings(&[base, &[(name, default)]].concat()));
                assert_eq!(with, wanted, "{name}={default}");
            }
        }
    }
}
