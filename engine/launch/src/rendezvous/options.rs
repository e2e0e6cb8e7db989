//! Intervals and timeouts, as in torchrun's `--rdzv-conf`.

use std::time::Duration;

use thiserror::Error;

/// Intervals and timeouts of a rendezvous. Defaults are torch's (dynamic_rendezvous.py, c10d_rendezvous_backend.py).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RendezvousOptions {
    /// How long `join` may wait for a round, excluding the time as a spare.
    pub join_timeout: Duration,
    /// How long the first gathering waits for more nodes once the minimum has come.
    pub last_call_timeout: Duration,
    /// How long closing, leaving and waiting for the shutdown of other nodes may take.
    pub close_timeout: Duration,
    /// How long one heartbeat may take.
    pub heartbeat_timeout: Duration,
    /// How often each node sends a heartbeat.
    pub keep_alive_interval: Duration,
    /// For how many intervals a heartbeat may be missing.
    pub keep_alive_max_attempt: u32,
    /// How long connecting to the store, and one request to it, may take.
    pub read_timeout: Duration,
    /// Whether this agent hosts the store; if `None`, the endpoint's address decides.
    pub is_host: Option<bool>,
    /// Whether another agent takes over if the one at the endpoint is lost.
    pub takeover: bool,
}

/// Why a `--rdzv-conf` was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// The value is not valid for this key.
    #[error("--rdzv-conf: `{key}` is `{value}`, but must be {expected}")]
    BadValue {
        /// The key, as given.
        key: String,
        /// The value, as given.
        value: String,
        /// Which values are valid.
        expected: &'static str,
    },
    /// The store type is not supported.
    #[error("--rdzv-conf: store_type `{0}` is not supported here: the store is always tcp; leave store_type out")]
    StoreType(String),
}

impl Default for RendezvousOptions {
    fn default() -> Self {
        RendezvousOptions {
            join_timeout: Duration::from_secs(600),
            last_call_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(30),
            heartbeat_timeout: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(5),
            keep_alive_max_attempt: 3,
            read_timeout: Duration::from_secs(60),
            is_host: None,
            takeover: true,
        }
    }
}

impl RendezvousOptions {
    /// Parses the pairs of `--rdzv-conf`, with the defaults for missing keys. The returned list has one warning for
    /// each unknown key.
    ///
    /// # Errors
    /// [`OptionsError`] names the key and the value.
    pub fn from_conf(conf: &[(String, String)]) -> Result<(Self, Vec<String>), OptionsError> {
        RendezvousOptions::default().with_conf(conf, "c10d", &["timeout", "rank"])
    }

    /// As [`RendezvousOptions::from_conf`], with the defaults of a static rendezvous: `timeout` (or 900 s) to join, and no last
    /// call.
    ///
    /// # Errors
    /// [`OptionsError`] names the key and the value.
    pub fn from_static_conf(conf: &[(String, String)]) -> Result<(Self, Vec<String>), OptionsError> {
        let options = RendezvousOptions {
            join_timeout: Duration::from_secs(900),
            takeover: false,
            ..RendezvousOptions::default()
        };
        options.with_conf(conf, "static", &["last_call_timeout", "is_host", "takeover", CAS_BACKOFF])
    }

    /// Keys that this backend does not read may have any value: torchrun does not check them either.
    fn with_conf(
        mut self,
        conf: &[(String, String)],
        backend: &str,
        unread: &[&str],
    ) -> Result<(Self, Vec<String>), OptionsError> {
        let mut warnings = Vec::new();
        for (key, value) in conf {
            if unread.contains(&key.as_str()) {
                warnings.push(format!("--rdzv-conf: a {backend} rendezvous does not read the key `{key}`"));
            } else if key == CAS_BACKOFF {
                delay(key, value)?;
                warnings.push(format!(
                    "--rdzv-conf: `{key}` has no effect here: one agent keeps the state, so no write has to be repeated"
                ));
            } else if !self.set(key, value)? {
                warnings.push(unknown(key));
            }
        }
        Ok((self, warnings))
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, OptionsError> {
        match key {
            "join_timeout" | "timeout" => self.join_timeout = seconds(key, value)?,
            "last_call_timeout" => self.last_call_timeout = seconds(key, value)?,
            "close_timeout" => self.close_timeout = seconds(key, value)?,
            "heartbeat_timeout" => self.heartbeat_timeout = seconds(key, value)?,
            "keep_alive_interval" => self.keep_alive_interval = seconds(key, value)?,
            "keep_alive_max_attempt" => self.keep_alive_max_attempt = attempts(key, value)?,
            "read_timeout" => self.read_timeout = seconds(key, value)?,
            "is_host" => self.is_host = Some(boolean(key, value)?),
            "takeover" => self.takeover = boolean(key, value)?,
            "store_type" if value == "tcp" => {}
            "store_type" => return Err(OptionsError::StoreType(value.to_owned())),
            "rank" => {} // torchrun itself puts --node-rank here
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// How long a heartbeat may be missing before the node is lost.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.keep_alive_interval.saturating_mul(self.keep_alive_max_attempt)
    }

    /// How often the authority looks for silent nodes and sends changes that add up: half the heartbeat's interval, from 20 ms to 1
    /// s, and at most half the timeout of a request.
    #[must_use]
    pub fn poll(&self) -> Duration {
        (self.keep_alive_interval / 2)
            .clamp(Duration::from_millis(20), Duration::from_secs(1))
            .min(self.read_timeout / 2)
    }

    /// How long one request may take before the store counts as lost: a lease, but at most `read_timeout`.
    #[must_use]
    pub fn request_timeout(&self) -> Duration {
        self.read_timeout.min(self.lease().max(self.heartbeat_timeout))
    }
}

/// torch's longest delay after a state write that another node's write has made invalid.
const CAS_BACKOFF: &str = "cas_backoff_max_seconds";

const KEYS: &str = "join_timeout, last_call_timeout, close_timeout, heartbeat_timeout, keep_alive_interval, \
                    keep_alive_max_attempt, read_timeout, timeout, is_host, takeover, store_type, cas_backoff_max_seconds";

fn unknown(key: &str) -> String {
    format!("--rdzv-conf: unknown key `{key}`; the known keys are {KEYS}")
}

fn bad(key: &str, value: &str, expected: &'static str) -> OptionsError {
    OptionsError::BadValue { key: key.to_owned(), value: value.to_owned(), expected }
}

/// Seconds, possibly with a fraction, from 1 ms to 10 years, so that no sum overflows a clock.
fn seconds(key: &str, value: &str) -> Result<Duration, OptionsError> {
    let parsed = value.trim().parse::<f64>().ok().filter(|s| (0.001..=315_360_000.0).contains(s));
    let expected = "a number of seconds from 0.001 to 315360000, like 30 or 0.5";
    parsed.map(Duration::from_secs_f64).ok_or_else(|| bad(key, value, expected))
}

/// torch's bounds of [`CAS_BACKOFF`].
fn delay(key: &str, value: &str) -> Result<f64, OptionsError> {
    let parsed = value.trim().parse::<f64>().ok().filter(|s| s.is_finite() && *s >= 0.0);
    parsed.ok_or_else(|| bad(key, value, "a finite number of seconds that is not negative, like 0 or 0.5"))
}

fn attempts(key: &str, value: &str) -> Result<u32, OptionsError> {
    let parsed = value.trim().parse().ok().filter(|n| (1..=1000).contains(n));
    parsed.ok_or_else(|| bad(key, value, "a whole number from 1 to 1000"))
}

fn boolean(key: &str, value: &str) -> Result<bool, OptionsError> {
    match value.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" => Ok(true),
        "0" | "false" | "f" | "no" | "n" => Ok(false),
        _ => Err(bad(key, value, "true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn reads_torch_keys_over_torch_defaults() {
        let pairs = conf(&[("join_timeout", "7"), ("keep_alive_interval", "0.5"), ("is_host", "True")]);
        let (options, warnings) = RendezvousOptions::from_conf(&pairs).unwrap();
        assert_eq!(warnings, [""; 0]);
        let expected = RendezvousOptions {
            join_timeout: Duration::from_secs(7),
            keep_alive_interval: Duration::from_millis(500),
            is_host: Some(true),
            ..RendezvousOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!(options.lease(), Duration::from_millis(1500));
    }

    #[test]
    fn gives_a_static_rendezvous_its_own_timeout() {
        assert_eq!(RendezvousOptions::from_static_conf(&[]).unwrap().0.join_timeout, Duration::from_secs(900));
        let (options, _) = RendezvousOptions::from_static_conf(&conf(&[("timeout", "20"), ("rank", "1")])).unwrap();
        assert_eq!(options.join_timeout, Duration::from_secs(20));
    }

    /// As in PyTorch's own tests, including the quotes (test/distributed/launcher/test_run.py).
    #[test]
    fn warns_about_keys_of_the_other_backend_with_any_value() {
        let pairs = conf(&[("'join_timeout", "5"), ("last_call_timeout", "1"), ("timeout", "5'")]);
        let (options, warnings) = RendezvousOptions::from_conf(&pairs).unwrap();
        assert_eq!((options.join_timeout.as_secs(), options.last_call_timeout.as_secs()), (600, 1));
        assert!(warnings[0].contains("unknown key `'join_timeout`"), "{warnings:?}");
        assert_eq!(warnings[1], "--rdzv-conf: a c10d rendezvous does not read the key `timeout`");
        let (_, warnings) =
            RendezvousOptions::from_static_conf(&conf(&[("last_call_timeout", "soon"), ("timeout", "5")])).unwrap();
        assert_eq!(warnings, ["--rdzv-conf: a static rendezvous does not read the key `last_call_timeout`"]);
        assert!(RendezvousOptions::from_static_conf(&conf(&[("timeout", "5'")])).is_err(), "it is read");
    }

    #[test]
    fn accepts_torchs_backoff_of_state_writes_and_says_that_it_has_no_effect() {
        for value in ["0", "0.5", "1e9"] {
            let (options, warnings) = RendezvousOptions::from_conf(&conf(&[(CAS_BACKOFF, value)])).unwrap();
            assert_eq!((options, warnings.len()), (RendezvousOptions::default(), 1), "{value}");
            assert!(
                warnings[0].starts_with("--rdzv-conf: `cas_backoff_max_seconds` has no effect here"),
                "{warnings:?}"
            );
        }
        for value in ["-1", "inf", "nan", "", "soon"] {
            let text = RendezvousOptions::from_conf(&conf(&[(CAS_BACKOFF, value)])).unwrap_err().to_string();
            assert!(
                text.ends_with(&format!(
                    "is `{value}`, but must be a finite number of seconds that is not negative, like 0 or 0.5"
                )),
                "{text}"
            );
            assert!(
                RendezvousOptions::from_static_conf(&conf(&[(CAS_BACKOFF, value)])).is_ok(),
                "static does not read it"
            );
        }
    }

    #[test]
    fn warns_about_unknown_keys() {
        let (_, warnings) = RendezvousOptions::from_conf(&conf(&[("joint_imeout", "7")])).unwrap();
        assert!(warnings[0].starts_with("--rdzv-conf: unknown key `joint_imeout`; the known keys are join_timeout, "));
    }

    #[test]
    fn rejects_bad_values_by_name() {
        for (key, value) in [
            ("join_timeout", "-1"),
            ("join_timeout", "NaN"),
            ("last_call_timeout", "1e300"),
            ("close_timeout", ""),
            ("keep_alive_interval", "0"),
            ("keep_alive_max_attempt", "0"),
            ("keep_alive_max_attempt", "1.5"),
            ("is_host", "perhaps"),
        ] {
            let text = RendezvousOptions::from_conf(&conf(&[(key, value)])).unwrap_err().to_string();
            assert!(text.starts_with(&format!("--rdzv-conf: `{key}` is `{value}`, but must be ")), "{text}");
        }
        assert!(
            RendezvousOptions::from_conf(&conf(&[("store_type", "file")]))
                .unwrap_err()
                .to_string()
                .contains("always tcp")
        );
    }
}
