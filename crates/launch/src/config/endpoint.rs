//! The endpoint of a rendezvous, and the other values of `--rdzv-*`.

use std::fmt;
use std::net::Ipv6Addr;

use super::error::ConfigError;
use super::given::Given;

/// `DEFAULT_PORT` of torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py.
pub const DEFAULT_PORT: u16 = 29400;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    /// 0 lets the operating system choose.
    pub port: u16,
}

impl Endpoint {
    /// Parses `host`, `host:port`, `[IPv6]` or `[IPv6]:port` as torch's `parse_rendezvous_endpoint` does (an empty host
    /// is `localhost`); the port is `None` if it is missing. A bare IPv6 address without a port is accepted.
    ///
    /// # Errors
    /// A message that does not contain the text itself.
    pub fn split(text: &str) -> Result<(String, Option<u16>), String> {
        let text = text.trim();
        let (host, port) = match text.rsplit_once(':') {
            _ if text.is_empty() => ("localhost", None),
            _ if text.starts_with('[') && text.ends_with(']') => (text, None),
            Some((host, _)) if is_torn(host) && text.parse::<Ipv6Addr>().is_ok() => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        let port = port.map(|port| parse_port(port).ok_or("the port must be a number from 0 to 65535")).transpose()?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let sound = !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "_.:-".contains(c));
        if !sound {
            return Err("the host must be a name, an IPv4 address, or an IPv6 address, such as node1:29400".to_owned());
        }
        Ok((host.to_owned(), port))
    }

    /// For c10d: the endpoint's port, or 29400.
    pub(super) fn c10d(given: &Given) -> Result<Self, ConfigError> {
        let (host, port) = Endpoint::split(&given.text).map_err(|why| ConfigError::not_allowed(given, why))?;
        Ok(Endpoint { host, port: port.unwrap_or(DEFAULT_PORT) })
    }

    /// For static: the endpoint with its port, otherwise the master's address and port.
    pub(super) fn fixed(endpoint: &Given, master_addr: &Given, master_port: u16) -> Result<Self, ConfigError> {
        if endpoint.text.trim().is_empty() {
            let text = format!("{}:{master_port}", master_addr.text.trim());
            let (host, _) = Endpoint::split(&text).map_err(|why| ConfigError::not_allowed(master_addr, why))?;
            return Ok(Endpoint { host, port: master_port });
        }
        let (host, port) = Endpoint::split(&endpoint.text).map_err(|why| ConfigError::not_allowed(endpoint, why))?;
        let port = port
            .ok_or_else(|| ConfigError::not_allowed(endpoint, "a static rendezvous needs the port too, HOST:PORT"))?;
        Ok(Endpoint { host, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// `--rdzv-conf`: comma-separated `key=value` pairs. If a key occurs twice, the last value wins.
pub(super) fn pairs(given: &Given) -> Result<Vec<(String, String)>, ConfigError> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if given.text.trim().is_empty() {
        return Ok(pairs);
    }
    for pair in given.text.split(',') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(ConfigError::not_allowed(given, "expected KEY=VALUE,KEY=VALUE,…"));
        }
        if value.is_empty() {
            return Err(ConfigError::not_allowed(given, format!("`{key}` needs a value, {key}=VALUE")));
        }
        pairs.retain(|(known, _)| known != key);
        pairs.push((key.to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

/// Returns true if `host` is an IPv6 address whose last group was parsed as a port.
fn is_torn(host: &str) -> bool {
    host.contains(':') && !host.starts_with('[') && host.parse::<Ipv6Addr>().is_err()
}

fn parse_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::given::Source;
    use super::*;

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    #[test]
    fn reads_endpoints_as_torch_does() {
        // Except for the last, the pairs are what torch 2.11's parse_rendezvous_endpoint returns for a default port of 29400.
        for (text, host, port) in [
            ("", "localhost", 29400),
            ("  ", "localhost", 29400),
            ("node1", "node1", 29400),
            ("node1:1234", "node1", 1234),
            ("localhost:0", "localhost", 0),
            ("10.0.0.1:65535", "10.0.0.1", 65535),
            ("[::1]", "::1", 29400),
            ("[::1]:29400", "::1", 29400),
            ("[0:0:0:0:0:0:0:1]:5", "0:0:0:0:0:0:0:1", 5),
            ("::1:29400", "::1", 29400),
            ("under_score.example:7", "under_score.example", 7),
            ("::1", "::1", 29400),
        ] {
            let endpoint = Endpoint::c10d(&given("rdzv-endpoint", text)).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port), "{text}");
        }
        assert_eq!(Endpoint { host: "::1".into(), port: 5 }.to_string(), "[::1]:5");
    }

    #[test]
    fn rejects_endpoints_that_torch_rejects() {
        for text in
            ["node1:", "node1:x", "node1:65536", "node1:123456", ":1234", "a b:1", "http://x:1", "node1:-1", "[]:1"]
        {
            let error = Endpoint::c10d(&given("rdzv-endpoint", text)).unwrap_err();
            assert!(error.to_string().starts_with(&format!("--rdzv-endpoint={text}: the ")), "{error}");
        }
    }

    #[test]
    fn uses_the_masters_address_if_a_static_endpoint_is_empty() {
        let fixed =
            |endpoint, addr| Endpoint::fixed(&given("rdzv-endpoint", endpoint), &given("master-addr", addr), 29500);
        assert_eq!(fixed("", "10.0.0.1").unwrap().to_string(), "10.0.0.1:29500");
        assert_eq!(fixed("", "[::1]").unwrap().to_string(), "[::1]:29500");
        assert_eq!(fixed("node1:7", "10.0.0.1").unwrap().to_string(), "node1:7");
        let error = fixed("node1", "10.0.0.1").unwrap_err().to_string();
        assert_eq!(error, "--rdzv-endpoint=node1: a static rendezvous needs the port too, HOST:PORT");
        assert!(fixed("", "a b").unwrap_err().to_string().starts_with("--master-addr=a b: the host must be"));
    }

    #[test]
    fn reads_pairs_and_names_the_key_without_a_value() {
        let read = |text| pairs(&given("rdzv-conf", text));
        let expected = [("a", "1"), ("b", "x=y")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(read(" a = 2 ,b=x=y").unwrap(), [("a".into(), "2".into()), expected[1].clone()]);
        assert_eq!(read("a=3,a=1").unwrap(), expected[..1]);
        assert_eq!(read(" ").unwrap(), []);
        assert_eq!(read("a=1,b").unwrap_err().to_string(), "--rdzv-conf=a=1,b: `b` needs a value, b=VALUE");
        assert!(read("a=1,").unwrap_err().to_string().ends_with("expected KEY=VALUE,KEY=VALUE,…"));
        assert!(read("=1").is_err());
    }
}
