//! What runs, from the first connection to Redis until the last answer: doors, configurations, the end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::select_all;
use hyper::Request;
use hyper::service::service_fn;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tonic::service::Routes;
use tower_service::Service as _;

use crate::doors::bounds::Door;
use crate::doors::grpc::should_rate_limit;
use crate::doors::health::{Health, Part};
use crate::doors::listen::{self, Ports, Slots};
use crate::doors::samples::Samples;
use crate::doors::tls::Certificates;
use crate::doors::{http, metrics, statsd};
use crate::limits::overrides::Overrides;
use crate::limits::tree::Config;
use crate::limits::{Update, files, xds};
use crate::redis::{Failure, Store, describe};
use crate::request::Service;
use crate::settings::{Redis, RedisType, Settings, Sink};
use crate::stats::Stats;

/// How long clients have to see that the service is about to end, before no connection is accepted any longer.
const NOTICE: Duration = Duration::from_secs(1);
/// How long requests that have come in may take then.
const DRAIN: Duration = Duration::from_secs(10);
/// How long units of blocks take to be given back.
const GIVING_BACK: Duration = Duration::from_millis(250);

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub async fn run(settings: Settings, background: &Handle) -> Result<(), String> {
    tracing::warn!("redis-rl-envoy {}", env!("CARGO_PKG_VERSION"));
    for note in &settings.notes {
        tracing::warn!("{note}");
    }
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        let Ok(mut signals) = kinds.into_iter().map(signal).collect::<io::Result<Vec<_>>>() else { return };
        select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
        let _ = stop.send(true);
    });
    serve(&settings, stopped, background).await
}

async fn serve(settings: &Settings, mut stopped: watch::Receiver<bool>, background: &Handle) -> Result<(), String> {
    let certificates = settings.grpc_tls.as_ref().map(Certificates::read).transpose()?.map(Arc::new);
    let stats = Arc::new(Stats::default());
    let Some(store) = connect(settings, &stats, stopped.clone()).await? else { return Ok(()) };
    let service = Arc::new(Service::new(settings, Arc::clone(&store), Arc::clone(&stats)));
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = Arc::new(Health::new(reporter, settings.healthy_with_config));
    health.report().await;

    let (updates, mut updated) = mpsc::channel(1);
    match &settings.xds {
        Some(xds) => drop(background.spawn(xds::watch(xds.clone(), updates))),
        None => drop(background.spawn(files::watch(settings.files.clone(), updates))),
    }
    let overrides = Overrides::of(settings.redis.clone(), background.clone());
    let loader = Loader { overrides, service: Arc::clone(&service), health: Arc::clone(&health) };
    if !settings.force_start {
        tokio::select! {
            update = updated.recv() => if let Some(update) = update { loader.load(update).await },
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(()),
        }
    }
    background.spawn(async move {
        while let Some(update) = updated.recv().await {
            loader.load(update).await;
        }
    });

    let ports = Arc::new(Ports::share());
    let samples = Arc::new(Samples { service: Arc::clone(&service), ports: Arc::clone(&ports) });
    let (close, closing) = watch::channel(false);
    // Serves in the background.
    let open = |what: &str, address: &str, slots: &Slots, router: axum::Router| {
        let _guard = background.enter();
        let listener = listen::tcp(address).map_err(|error| format!("{what} at {address}: {error}"))?;
        tracing::warn!("Listening for {what} on '{address}'");
        Ok::<_, String>(tokio::spawn(listen::http(listener, slots.clone(), router, closing.clone())))
    };
    match settings.sink.clone() {
        Sink::None => {}
        Sink::Prometheus { address, path } => {
            let metrics = http::metrics(Arc::clone(&samples), path, metrics::labels(&settings.extra_tags)?);
            open("metrics", &address, &ports.metrics, metrics)?;
        }
        sink => {
            let tags = settings.extra_tags.clone();
            background.spawn(statsd::run(sink, Arc::clone(&samples), settings.flush_interval, tags));
        }
    }
    // Where requests are decided, as its calls may make the connection.
    tokio::spawn(check_redis(store, settings.redis.clone(), Arc::clone(&health)));
    let (place, listener) = match &settings.grpc_socket {
        Some(path) => (path.display().to_string(), listen::unix(path).map(listen::Listener::Unix)),
        None => (settings.grpc.clone(), listen::tcp(&settings.grpc).map(listen::Listener::Tcp)),
    };
    let listener = listener.map_err(|error| format!("{place}: {error}"))?;
    tracing::warn!("Listening for gRPC on '{place}'");
    // After gRPC: what /healthcheck calls healthy can be asked.
    open("debug", &settings.debug, &ports.debug, http::debug(samples, Door::new(Arc::clone(&stats))))?;
    let http = http::doors(Arc::clone(&service), Arc::clone(&health), Door::new(Arc::clone(&stats)));
    let http = open("HTTP", &settings.http, &ports.http, http)?;
    if let Some(certificates) = &certificates {
        background.spawn(Arc::clone(certificates).watch());
    }
    let door = Door::new(stats);
    let (limits, others) = (Arc::clone(&service), Routes::new(health_service).prepare());
    let services = service_fn(move |request: Request<axum::body::Body>| match request.uri().path() {
        SHOULD_RATE_LIMIT => should_rate_limit(Arc::clone(&limits), request).map(Ok).left_future(),
        _ => others.clone().call(request).right_future(),
    });
    let ended = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
        health.set(Part::Running, false).await;
        tracing::warn!("ending: requests that have come in are answered");
        tokio::time::sleep(NOTICE).await;
        let _ = close.send(true);
        tokio::time::sleep(DRAIN).await;
    };
    let served = async {
        // Together: one that waits for a client without an end must not keep the other from ending in good time.
        let grpc =
            listen::grpc(listener, ports.grpc.clone(), certificates, door, services, settings.ages, closing.clone());
        let _ = tokio::join!(grpc, http);
    };
    tokio::select! {
        () = served => {}
        () = ended => {}
    }
    let unspent = service.config().map(|config| config.longest_block()).unwrap_or_default();
    if !unspent.is_zero() {
        // The client gives them back at the end of their time.
        tokio::time::sleep(unspent + GIVING_BACK).await;
    }
    Ok(())
}

/// Connects to Redis, again and again until it is there. `None` if the service is told to end meanwhile.
async fn connect(
    settings: &Settings,
    stats: &Arc<Stats>,
    mut stopped: watch::Receiver<bool>,
) -> Result<Option<Arc<Store>>, String> {
    let redis = &settings.redis;
    let start = Instant::now();
    let mut wait = redis.startup_initial;
    loop {
        let failure = match Store::connect(redis, &settings.key_prefix, Arc::clone(stats)).await {
            Ok(store) => {
                describe(redis).await;
                return Ok(Some(Arc::new(store)));
            }
            Err(failure) => failure,
        };
        if !redis.startup_elapsed.is_zero() && start.elapsed() >= redis.startup_elapsed {
            return Err(format!("no Redis after {:?}: {}", start.elapsed(), failure.reason()));
        }
        let what = match &failure {
            Failure::Unavailable { .. } => "no connection to Redis",
            Failure::Permanent(_) => "Redis refuses to decide",
        };
        tracing::warn!("{what}, next attempt in {wait:?}: {}", failure.reason());
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
        }
        wait = wait.saturating_mul(2).min(redis.startup_max);
    }
}

/// Asks Redis once a second.
async fn check_redis(store: Arc<Store>, settings: Redis, health: Arc<Health>) {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // What came of it, the store knows, and says in the log.
        let _ = store.probe(settings.deadline).await;
        if settings.health_check {
            health.set(Part::Redis, store.is_available()).await;
        }
    }
}

struct Loader {
    overrides: Overrides,
    service: Arc<Service>,
    health: Arc<Health>,
}

impl Loader {
    async fn load(&self, update: Update) {
        let Service { settings, stats, .. } = &*self.service;
        let loaded = update
            .definitions
            .and_then(|definitions| Config::load(&definitions, &self.overrides, stats, &settings.options));
        let taken = match loaded {
            Ok(config) => {
                self.warn(&config);
                if settings.healthy_with_config {
                    self.health.set(Part::Config, !config.domains.is_empty()).await;
                }
                let (limits, domains) = (config.limits(), config.domains.len());
                self.service.set_config(config);
                stats.service.config_load_success.inc();
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                stats.config_loaded_at.store(now.as_secs(), Relaxed);
                let mended = if stats.config_refused.swap(false, Relaxed) { ", which was refused before," } else { "" };
                tracing::warn!("the configuration{mended} was loaded; limits: {limits}, domains: {domains}");
                Ok(())
            }
            Err(reason) => {
                stats.service.config_load_error.inc();
                stats.config_refused.store(true, Relaxed);
                tracing::error!("the configuration is refused, and the one before stays: {reason}");
                Err(reason)
            }
        };
        self.service.forget_statistics();
        if let Some(answer) = update.answer {
            let _ = answer.send(taken);
        }
    }

    fn warn(&self, config: &Config) {
        let settings = &self.service.settings;
        if config.counts_addresses() && !settings.trusts_proxies {
            tracing::warn!(
                "addresses of clients are those of the gateways, which share one limit: TRUSTED_PROXIES has to name the \
                 gateways"
            );
        }
        let domains = config.domains_without_hash_tag();
        if settings.redis.kind == RedisType::Cluster && !domains.is_empty() {
            tracing::warn!(
                "in a cluster the limits of one request lie in several slots and are decided one by one, unless \
                 hash_tag brings them together; domains without one: {}",
                domains.join(", ")
            );
        }
    }
}
