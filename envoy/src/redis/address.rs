//! Where Redis is, and how the service connects: addresses, passwords, TLS, sentinels, clusters.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
    TlsMode,
};
use redis_rl_client::Connection;

use super::PATIENCE;
use super::reply::Failure;
use crate::settings::{Redis, RedisType};

pub(super) fn connection(settings: &Redis) -> Result<Connection, Failure> {
    Ok(match settings.kind {
        RedisType::Single => client(settings, &settings.url)?.into(),
        RedisType::Sentinel => sentinels(settings)?.into(),
        RedisType::Cluster => {
            let nodes = settings.url.split(',').map(|node| address(settings, node)).collect::<Result<Vec<_>, _>>()?;
            // The deadline is what bounds a call; a node that hangs is given up by the client, too.
            let patience = settings.deadline.max(Duration::from_secs(1));
            let mut builder = ClusterClient::builder(nodes)
                .use_protocol(redis::ProtocolVersion::RESP3)
                .connection_timeout(patience)
                .response_timeout(patience);
            if let Some(files) = tls(settings)? {
                builder = builder.certs(files);
            }
            builder.build()?.into()
        }
    })
}

/// The server, or the first of a cluster.
async fn first_server(settings: &Redis) -> Result<redis::Client, Failure> {
    match settings.kind {
        RedisType::Sentinel => Ok(sentinels(settings)?.async_get_client().await?),
        RedisType::Single => client(settings, &settings.url),
        RedisType::Cluster => client(settings, settings.url.split(',').next().unwrap_or_default()),
    }
}

/// Says in the log which server it is.
pub async fn describe(settings: &Redis) {
    let asked = async {
        let client = first_server(settings).await?;
        let info = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("INFO").arg("server").query_async::<String>(&mut connection).await
        };
        Ok::<_, Failure>((client.get_connection_info().addr().to_string(), info.await))
    };
    let Ok(Ok((address, info))) = tokio::time::timeout(PATIENCE, asked).await else { return };
    let info = info.unwrap_or_default();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let version = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server that does not tell its version".to_owned(),
    };
    tracing::warn!("connected to {version} at {address}");
}

/// A connection of its own to the server that has a key.
pub async fn connection_for(
    settings: &Redis,
    key: &str,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, Failure> {
    let connect = async |client: redis::Client| client.get_multiplexed_async_connection_with_config(config).await;
    if settings.kind != RedisType::Cluster {
        return Ok(connect(first_server(settings).await?).await?);
    }
    let mut last = Failure::unavailable("no node answers");
    for node in settings.url.split(',') {
        let asked = async {
            let mut connection = connect(client(settings, node)?).await?;
            // Any node says which one has the key.
            let asked = redis::cmd("HLEN").arg(key).exec_async(&mut connection).await;
            match asked.as_ref().map_err(redis::RedisError::redirect_node) {
                Err(Some((node, _))) => Ok(connect(client(settings, node)?).await?),
                _ => Ok(asked.map(|()| connection)?),
            }
        };
        match asked.await {
            Ok(connection) => return Ok(connection),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn client(settings: &Redis, url: &str) -> Result<redis::Client, Failure> {
    Ok(match tls(settings)? {
        Some(files) => redis::Client::build_with_tls(address(settings, url)?, files)?,
        None => redis::Client::open(address(settings, url)?)?,
    })
}

/// `name,sentinel:port,sentinel:port`: the primary of this name, which the sentinels know.
fn sentinels(settings: &Redis) -> Result<SentinelClient, Failure> {
    let Some((name, nodes)) = settings.url.split_once(',') else {
        let wanted = "REDIS_URL must be the name of the primary and its sentinels: name,host:port,…";
        return Err(Failure::unavailable(wanted));
    };
    let nodes = nodes.split(',').map(|node| address(settings, node).map(|info| info.addr().clone()));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let mut builder = SentinelClientBuilder::new(nodes, name, SentinelServerType::Master)?;
    if settings.tls {
        let mode = if settings.skip_hostname_verification { TlsMode::Insecure } else { TlsMode::Secure };
        builder = builder.set_client_to_redis_tls_mode(mode).set_client_to_sentinel_tls_mode(mode);
    }
    if let Some(files) = tls(settings)? {
        builder = builder.set_client_to_redis_certificates(files.clone()).set_client_to_sentinel_certificates(files);
    }
    if let Some((user, password)) = login(&settings.auth) {
        builder = builder.set_client_to_redis_username(user).set_client_to_redis_password(password);
    }
    if let Some((user, password)) = login(&settings.sentinel_auth) {
        builder = builder.set_client_to_sentinel_username(user).set_client_to_sentinel_password(password);
    }
    Ok(builder.build()?)
}

/// Of `user:password`, or of the password alone, which is that of the user `default`.
fn login(auth: &str) -> Option<(&str, &str)> {
    (!auth.is_empty()).then(|| auth.split_once(':').unwrap_or(("default", auth)))
}

/// A path, `host:port`, or a URL (`redis://user:password@host:port/db`, with or without its scheme). A password of the URL
/// counts before REDIS_AUTH.
fn address(settings: &Redis, text: &str) -> Result<ConnectionInfo, Failure> {
    let text = text.trim();
    // What is read as a path or a host is told in the log, so a password must not be in it: with an @, a path begins at
    // the root.
    let is_path = settings.socket_type == "unix"
        && settings.kind == RedisType::Single
        && (text.starts_with('/') || !text.contains('@'));
    let given = if text.contains("://") {
        text.into_connection_info()
    } else if is_path {
        ConnectionAddr::Unix(text.into()).into_connection_info()
    } else {
        let host = if text.starts_with(':') { "localhost" } else { "" };
        format!("redis://{host}{text}").into_connection_info()
    };
    let mut info = given.map_err(|error| Failure::unavailable(format!("REDIS_URL: {error}")))?;
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = info.addr()
        && (settings.tls || matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
    {
        let (host, port, insecure) = (host.clone(), *port, settings.skip_hostname_verification);
        info = info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None });
    }
    let mut redis = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    if let Some((user, password)) = login(&settings.auth).filter(|_| redis.password().is_none()) {
        redis = redis.set_username(user).set_password(password);
    }
    Ok(info.set_redis_settings(redis))
}

fn tls(settings: &Redis) -> Result<Option<TlsCertificates>, Failure> {
    let read = |path: &str| std::fs::read(path).map_err(|error| Failure::unavailable(format!("{path}: {error}")));
    let files = &settings.tls_files;
    if !settings.tls || (files.cert.is_empty() && files.ca.is_empty()) {
        return Ok(None);
    }
    let mut client_tls = None;
    if !files.cert.is_empty() && !files.key.is_empty() {
        client_tls = Some(ClientTlsConfig { client_cert: read(&files.cert)?, client_key: read(&files.key)? });
    }
    let root_cert = if files.ca.is_empty() { None } else { Some(read(&files.ca)?) };
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    /// Where this leads: address, user, password, database.
    fn leads(variables: &[(&str, &str)]) -> String {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Settings::read(variables.collect()).unwrap().redis;
        let info = address(&settings, &settings.url).unwrap();
        let redis = info.redis_settings();
        let tls = if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) { " TLS" } else { "" };
        format!("{}{tls} {:?} {:?} {}", info.addr(), redis.username(), redis.password(), redis.db())
    }

    #[test]
    fn addresses_are_paths_hosts_and_urls() {
        let auth = ("REDIS_AUTH", "me:secret");
        let tcp = ("REDIS_SOCKET_TYPE", "tcp");
        assert_eq!(leads(&[("REDIS_URL", "/run/redis.sock"), auth]), "/run/redis.sock Some(\"me\") Some(\"secret\") 0");
        assert_eq!(leads(&[("REDIS_URL", "cache:6380"), tcp]), "cache:6380 None None 0");
        assert_eq!(
            leads(&[("REDIS_URL", "[::1]:6380"), tcp, auth, ("REDIS_TLS", "true")]),
            "::1:6380 TLS Some(\"me\") Some(\"secret\") 0"
        );
        // REDIS_AUTH and REDIS_TLS hold for a URL, too.
        assert_eq!(
            leads(&[("REDIS_URL", "redis://cache:6380/3"), auth, ("REDIS_TLS", "true")]),
            "cache:6380 TLS Some(\"me\") Some(\"secret\") 3"
        );
        assert_eq!(leads(&[("REDIS_URL", "rediss://:own@cache:6380"), auth]), "cache:6380 TLS None Some(\"own\") 0");
        // Whatever REDIS_SOCKET_TYPE says: a path would be told in the log with the password.
        for more in [&[][..], &[tcp]] {
            let variables = [&[("REDIS_URL", "me:own@cache:6380")], more].concat();
            assert_eq!(leads(&variables), "cache:6380 Some(\"me\") Some(\"own\") 0");
        }
        assert_eq!(leads(&[("REDIS_URL", "/run/redis@1.sock")]), "/run/redis@1.sock None None 0");
    }
}
