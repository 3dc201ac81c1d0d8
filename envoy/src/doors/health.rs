//! Whether the service is healthy, for /healthcheck and for gRPC's health service.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// The name that gRPC's health service knows the service by.
const NAME: &str = "ratelimit";

/// Healthy if all parts are.
pub struct Health {
    redis: AtomicBool,
    config: AtomicBool,
    /// Until SIGTERM.
    running: AtomicBool,
    reporter: HealthReporter,
}

impl Health {
    pub fn new(reporter: HealthReporter, needs_config: bool) -> Self {
        Self {
            redis: AtomicBool::new(true),
            config: AtomicBool::new(!needs_config),
            running: AtomicBool::new(true),
            reporter,
        }
    }

    pub fn is_healthy(&self) -> bool {
        self.redis.load(Relaxed) && self.config.load(Relaxed) && self.running.load(Relaxed)
    }

    pub async fn set_redis(&self, healthy: bool) {
        if self.redis.swap(healthy, Relaxed) != healthy {
            self.report().await;
        }
    }

    pub async fn set_config(&self, healthy: bool) {
        self.config.store(healthy, Relaxed);
        self.report().await;
    }

    pub async fn stop(&self) {
        self.running.store(false, Relaxed);
        self.report().await;
    }

    /// Tells gRPC's health service.
    pub async fn report(&self) {
        let status = if self.is_healthy() { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status(NAME, status).await;
    }
}
