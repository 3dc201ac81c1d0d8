//! Whether the service is healthy, for /healthcheck and for gRPC's health service.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

#[derive(Clone, Copy)]
pub enum Part {
    Redis,
    Config,
    /// Until SIGTERM.
    Running,
}

pub struct Health {
    parts: [AtomicBool; 3],
    reporter: HealthReporter,
}

impl Health {
    pub fn new(reporter: HealthReporter, needs_config: bool) -> Self {
        Self { parts: [true, !needs_config, true].map(AtomicBool::new), reporter }
    }

    pub fn is_healthy(&self) -> bool {
        self.parts.iter().all(|part| part.load(Relaxed))
    }

    pub async fn set(&self, part: Part, healthy: bool) {
        if self.parts[part as usize].swap(healthy, Relaxed) != healthy {
            self.report().await;
        }
    }

    pub async fn report(&self) {
        let status = if self.is_healthy() { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("ratelimit", status).await;
    }
}
