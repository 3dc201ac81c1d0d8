//! Configurations that change while the service runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Redis, Service, descriptor, http, until};

fn limit(requests: u32) -> String {
    format!("domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: {requests}}}}}]\n")
}

/// Waits until the configuration says this limit.
async fn says(service: &Service, requests: u32) {
    let wanted = format!("requests_per_unit={requests},");
    until("the configuration is read", async || http(service.debug, "GET", "/rlconfig", "").1.contains(&wanted)).await;
}

#[tokio::test]
async fn files_are_read_again_and_a_bad_one_changes_nothing() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, &limit(10), &[]).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 9");
    fs::write(service.config().join("config.yaml"), limit(20)).unwrap();
    says(&service, 20).await;
    // The count stays.
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 18");

    fs::write(service.config().join("config.yaml"), "domain: d\ndescriptors: [{key: a, rate: 5}]\n").unwrap();
    until("the file is refused", async || service.process.log().contains("config.yaml:2: unknown key 'rate'")).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 17");
    assert_eq!(service.metric("ratelimit_service_config_load_error").to_string(), "1");

    fs::create_dir(service.config().join("more")).unwrap();
    fs::write(service.config().join("config.yaml"), limit(30)).unwrap();
    says(&service, 30).await;
    fs::write(service.config().join("more/second.yaml"), limit(30)).unwrap();
    until("a domain given twice is refused", async || service.process.log().contains("the domain 'd' is in")).await;
    fs::write(service.config().join("more/second.yaml"), limit(40).replace("domain: d", "domain: e")).unwrap();
    says(&service, 40).await;
    fs::remove_file(service.config().join("more/second.yaml")).unwrap();
    until("the domain is gone", async || !http(service.debug, "GET", "/rlconfig", "").1.contains("e.a:")).await;
    // And so are its statistics; those of what is still there go on.
    until("its names are gone", async || !http(service.metrics, "GET", "/metrics", "").1.contains("domain=\"e\""))
        .await;
    assert_eq!(service.metric("ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"}"), 3.0);
}

#[tokio::test]
async fn a_link_that_moves_is_followed() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    for (name, requests) in [("v1", 10), ("v2", 20)] {
        fs::create_dir_all(files.path().join(name).join("app/config")).unwrap();
        fs::write(files.path().join(name).join("app/config/c.yaml"), limit(requests)).unwrap();
    }
    let current = files.path().join("current");
    symlink("v1", &current).unwrap();
    let variables = [("RUNTIME_ROOT", current.to_str().unwrap()), ("RUNTIME_SUBDIRECTORY", "app")];
    let service = Service::with_files(&redis, &[], &variables).await;
    says(&service, 10).await;
    symlink("v2", files.path().join("next")).unwrap();
    fs::rename(files.path().join("next"), &current).unwrap();
    says(&service, 20).await;
}

/// Where the link moves while files are read, some are of the folder before, and some are gone.
#[tokio::test]
async fn what_is_replaced_while_it_is_read_is_not_loaded_in_part() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    for (version, requests) in [("v0", 10), ("v1", 20)] {
        let config = files.path().join(version).join("config");
        fs::create_dir_all(&config).unwrap();
        for number in 0..2000 {
            let text = limit(requests).replace("domain: d", &format!("domain: d{number}"));
            fs::write(config.join(format!("{version}-{number}.yaml")), text).unwrap();
        }
    }
    let (current, next) = (files.path().join("current"), files.path().join("next"));
    symlink("v0", &current).unwrap();
    let service = Service::with_files(&redis, &[], &[("RUNTIME_ROOT", current.to_str().unwrap())]).await;
    let start = Instant::now();
    for version in (0..).take_while(|_| start.elapsed() < Duration::from_secs(12)) {
        symlink(format!("v{}", version % 2), &next).unwrap();
        fs::rename(&next, &current).unwrap();
        tokio::time::sleep(Duration::from_millis(40 + version % 7 * 30)).await;
    }
    symlink("v1", &next).unwrap();
    fs::rename(&next, &current).unwrap();
    says(&service, 20).await;
    let log = service.process.log();
    let loaded = log.matches("was loaded; limits: ").count();
    assert!(loaded > 1 && log.matches("limits: 2000, domains: 2000").count() == loaded, "{log}");
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_no_empty_configuration() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    let root = files.path().join("root");
    let variables = [("RUNTIME_ROOT", root.to_str().unwrap())];
    let mut service = Service::with_files(&redis, &[], &variables).await;
    service.process.says(&format!("the folder {}", root.display())).await;
    service.ask(crate::support::request("d", [descriptor("a")])).await.unwrap_err();
    fs::create_dir(&root).unwrap();
    fs::write(root.join("config.yaml"), limit(10)).unwrap();
    says(&service, 10).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 9");
    // While it is replaced, what was read holds.
    fs::rename(&root, files.path().join("away")).unwrap();
    until("it is missed", async || service.process.log().matches("No such file").count() == 2).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 8");
    fs::rename(files.path().join("away"), &root).unwrap();
    until("it is read again", async || service.metric("ratelimit_service_config_load_success").to_string() == "2")
        .await;
}

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The service as a user that can be kept from reading a file, which root cannot.
async fn start_unprivileged(redis: &Redis, files: &[(&str, &str)]) -> Service {
    // The program, where every user can start it.
    let folder = tempfile::tempdir().unwrap();
    set_mode(&folder, 0o755);
    let program = folder.path().join("service");
    fs::copy(env!("CARGO_BIN_EXE_redis-rl-envoy"), &program).unwrap();
    let mut command = Command::new(&program);
    let root = fs::metadata(&program).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&root) == 0 {
        command.uid(65534).gid(65534);
    }
    let service = Service::spawn_as(command, redis.port, files, &[]);
    set_mode(&service.folder, 0o755);
    service.started().await
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_the_limits_stay() {
    let redis = Redis::with_module();
    let other = limit(5).replace("domain: d", "domain: e");
    let mut service = start_unprivileged(&redis, &[("config.yaml", &limit(10)), ("more.yaml", &other)]).await;
    until("both are read", async || http(service.debug, "GET", "/rlconfig", "").1.contains("e.a:")).await;
    let file = service.config().join("more.yaml");
    let folder = service.config().join("folder");
    fs::create_dir(&folder).unwrap();

    let mut left = 5;
    let mut loaded = service.metric("ratelimit_service_config_load_success");
    for unreadable in [&file, &folder] {
        let mode = fs::metadata(unreadable).unwrap().permissions().mode();
        set_mode(unreadable, 0o000);
        let said = format!("{}: Permission denied", unreadable.display());
        until("it is refused", async || service.process.log().contains(&said)).await;
        left -= 1;
        assert_eq!(service.hit("e", descriptor("a")).await, format!("OK {left}"));
        set_mode(unreadable, mode);
        loaded += 1.0;
        until("it is read", async || service.metric("ratelimit_service_config_load_success") == loaded).await;
    }
    // One that cannot be read takes its place.
    let next = service.folder.path().join("next.yaml");
    fs::write(&next, &other).unwrap();
    set_mode(&next, 0o000);
    fs::rename(&next, &file).unwrap();
    until("it is refused", async || service.process.log().matches("more.yaml: Permission denied").count() == 2).await;
    // A link that leads nowhere.
    fs::remove_file(&file).unwrap();
    symlink("nowhere", &file).unwrap();
    until("it is refused", async || service.process.log().contains("more.yaml: No such file")).await;
    assert_eq!(service.hit("e", descriptor("a")).await, format!("OK {}", left - 1));
    assert_eq!(service.metric("ratelimit_service_config_load_success"), loaded);
}

#[tokio::test]
async fn a_folder_with_another_name_is_no_empty_configuration() {
    let redis = Redis::with_module();
    let wrong = [("RUNTIME_APPDIRECTORY", "confg"), ("RUNTIME_WATCH_ROOT", "true")];
    let mut service = Service::with_files(&redis, &[("config.yaml", &limit(10))], &wrong).await;
    service.ask(crate::support::request("d", [descriptor("a")])).await.unwrap_err();
    service.process.says("root/confg").await;

    let mut service = Service::start(&redis, &limit(10), &[("RUNTIME_WATCH_ROOT", "true")]).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 9");
    fs::remove_dir_all(service.config()).unwrap();
    until("it is refused", async || service.metric("ratelimit_service_config_load_error") == 1.0).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 8");
    // A folder that is there and empty is an empty configuration.
    fs::create_dir(service.config()).unwrap();
    until("it is read", async || service.metric("ratelimit_service_config_load_success") == 2.0).await;
    assert_eq!(http(service.debug, "GET", "/rlconfig", "").1, "");
}

/// As Kubernetes lays a ConfigMap out: files are links through a link to a folder that is replaced as a whole.
#[tokio::test]
async fn a_configmap_is_followed() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    let config = files.path().join("config");
    for (name, requests) in [("..1", 10), ("..2", 20)] {
        fs::create_dir_all(config.join(name)).unwrap();
        fs::write(config.join(name).join("c.yaml"), limit(requests)).unwrap();
    }
    fs::rename(config.join("..2"), files.path().join("later")).unwrap();
    symlink("..1", config.join("..data")).unwrap();
    symlink("..data/c.yaml", config.join("c.yaml")).unwrap();
    let variables = [("RUNTIME_ROOT", files.path().to_str().unwrap()), ("RUNTIME_WATCH_ROOT", "false")];
    let service = Service::with_files(&redis, &[], &variables).await;
    says(&service, 10).await;
    fs::rename(files.path().join("later"), config.join("..2")).unwrap();
    symlink("..2", config.join("..next")).unwrap();
    fs::rename(config.join("..next"), config.join("..data")).unwrap();
    fs::remove_dir_all(config.join("..1")).unwrap();
    says(&service, 20).await;
}

/// Which files count: those below the folder, or with RUNTIME_WATCH_ROOT those of the root that begin with its name.
#[tokio::test]
async fn names_say_which_files_count() {
    let redis = Redis::with_module();
    let files = tempfile::tempdir().unwrap();
    let write = |name: &str, domain: &str| {
        let path = files.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, limit(1).replace("domain: d", &format!("domain: {domain}"))).unwrap();
    };
    write("config/a.yaml", "a");
    write("config/.hidden.yaml", "hidden");
    write("config.b.yaml", "b");
    write(".config/c.yaml", "c");
    write(".config/.d.yaml", "d");
    write("other/e.yaml", "e");
    let root = files.path().to_str().unwrap();
    let all = ("RUNTIME_IGNOREDOTFILES", "false");
    let here = ("RUNTIME_WATCH_ROOT", "false");
    for (variables, wanted) in [
        (&[][..], "a b"),
        (&[all], "a b hidden"),
        (&[here], "a"),
        (&[here, all], "a hidden"),
        (&[("RUNTIME_APPDIRECTORY", ".config")], "c"),
    ] {
        let variables = [&[("RUNTIME_ROOT", root)], variables].concat();
        let service = Service::with_files(&redis, &[], &variables).await;
        let (_, config) = http(service.debug, "GET", "/rlconfig", "");
        let domains: Vec<_> = config.lines().map(|line| line.split('.').next().unwrap()).collect();
        assert_eq!(domains.join(" "), wanted, "{variables:?}");
    }
}

#[tokio::test]
async fn files_of_one_domain_are_merged_where_it_is_allowed() {
    let redis = Redis::with_module();
    let (first, second) = (limit(10), limit(20).replace("key: a", "key: b"));
    let files = [("1.yaml", first.as_str()), ("2.yaml", second.as_str())];
    let mut service = Service::with_files(&redis, &files, &[("MERGE_DOMAIN_CONFIG", "true")]).await;
    assert_eq!(service.hit("d", descriptor("a")).await, "OK 9");
    assert_eq!(service.hit("d", descriptor("b")).await, "OK 19");
    let refused = Service::with_files(&redis, &files, &[]).await;
    refused.process.says("config.2.yaml: the domain 'd' is in config.1.yaml already").await;
}

#[tokio::test]
async fn the_health_may_depend_on_a_configuration() {
    let redis = Redis::with_module();
    let service = Service::with_files(&redis, &[], &[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]).await;
    assert_eq!(http(service.http, "GET", "/healthcheck", "").0, 500);
    fs::write(service.config().join("c.yaml"), limit(1)).unwrap();
    until("the service is healthy", async || http(service.http, "GET", "/healthcheck", "").0 == 200).await;
}

#[tokio::test]
async fn started_with_a_bad_file_it_has_no_configuration() {
    let redis = Redis::with_module();
    let mut service = Service::start(&redis, "domain: [", &[]).await;
    assert_eq!(http(service.http, "GET", "/healthcheck", "").0, 200);
    let error = service.ask(crate::support::request("d", [descriptor("a")])).await.unwrap_err();
    assert_eq!(error.message(), "no rate limit configuration loaded");
    fs::write(service.config().join("config.yaml"), limit(5)).unwrap();
    says(&service, 5).await;
}
