//! Behind a real Envoy.
