//! Serves a page that follows files: HTTP, read-only. A thread reads the files, so a file system that hangs keeps no page waiting.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use lockstep_contract::foreign;
use lockstep_launch::exit::Refused;
use lockstep_report::Screen;
use lockstep_report::formatting::plain;
use maud::{Markup, html};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::AbortHandle;

/// A page and what belongs to it.
pub trait Site: Send + Sync + 'static {
    /// What is read.
    type Content: Send + Sync + 'static;
    /// What the page is about, with its verb: `the class is`.
    const SUBJECT: &'static str;

    /// Reads the files; `last` is what was read before.
    fn read(&self, last: &Arc<Self::Content>) -> Result<Arc<Self::Content>, String>;

    /// What an address has: its type and its text.
    fn answer(&self, asked: &Asked<'_, Self::Content>) -> anyhow::Result<(&'static str, String)>;
}

/// What a browser asks for, and what there is.
pub struct Asked<'a, C> {
    /// The address without its query, which is in `pairs`.
    pub path: &'a str,
    pub pairs: BTreeMap<&'a str, &'a str>,
    pub content: Arc<C>,
    /// What keeps the files from being read, and for how long.
    pub trouble: Option<(String, Duration)>,
}

/// The script that asks for a page again: a file of its own, so that a browser runs no other.
const SCRIPT: &str = include_str!("follow.js");
/// How long to wait between two readings: at least this, and this many times what the last one took.
const READ_EVERY: (Duration, u32) = (Duration::from_secs(1), 5);
/// A reading that takes longer, and many times longer than the last one, is in trouble.
const LATE: (Duration, u32) = (Duration::from_secs(5), 4);
/// How many browsers can be connected at once; each asks every two seconds. One more takes the place of the oldest connection, so that silent
/// ones keep nobody out: a browser connects again.
const CONNECTIONS: usize = 256;
/// A connection that says nothing for this long is closed.
const SILENT: Duration = Duration::from_secs(30);
/// No connection lives for longer: a browser makes another.
const LONGEST: Duration = Duration::from_secs(600);

/// What the head of a page that follows has besides.
pub fn following() -> Markup {
    html! {
        noscript { meta http-equiv="refresh" content="5"; }
        script src="follow.js" defer {}
    }
}

/// What keeps `what` from being read, for a page.
pub fn notice(what: &str, trouble: Option<&(String, Duration)>) -> Markup {
    html! {
        @if let Some((why, age)) = trouble {
            section.notice {
                h2 { (what) " cannot be read" }
                p { (plain(why)) ". What is below was read " (span(age.as_secs())) " ago." }
            }
        }
    }
}

/// `40 s`, `12 min`, `3 h 05 min`, `4 days`.
pub fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h {:02} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `PORT`, `:PORT` and `HOST` get what is missing from `default`.
pub fn address(text: &str, default: &str) -> Result<String, String> {
    let (host, port) = default.rsplit_once(':').unwrap_or_default();
    let whole = match text {
        _ if text.parse::<u16>().is_ok() => format!("{host}:{text}"),
        _ if text.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_ipv6()) => format!("[{text}]:{port}"),
        _ if text.starts_with(':') => format!("0.0.0.0{text}"),
        _ if text.contains(':') => text.to_owned(),
        _ => format!("{text}:{port}"),
    };
    let port = whole.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
    match port {
        Some(Ok(_)) => Ok(whole),
        _ => Err("an address is HOST:PORT, HOST, :PORT for all of this machine's addresses, or PORT".into()),
    }
}

struct LastRead<C> {
    content: Arc<C>,
    at: Instant,
    /// Why it could not be read since.
    trouble: Option<String>,
    /// When the reading began that has not ended.
    reading: Option<Instant>,
    took: Duration,
}

/// Serves the page until SIGINT or SIGTERM, at first with what has been `read`. `to_all` is said of an address that others reach. Returns
/// what was read last.
pub fn serve<S: Site>(
    address: &str,
    site: S,
    read: Arc<S::Content>,
    to_all: &str,
    screen: &Screen,
) -> anyhow::Result<Arc<S::Content>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the server")?;
    runtime.block_on(async {
        let refused = |error: std::io::Error| {
            Refused(format!(
                "cannot serve at {}: {error}; give another address: --serve 127.0.0.1:0 takes a free port",
                foreign::one_line(address)
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(refused)?;
        let (mut interrupt, mut end) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let site = Arc::new(site);
        let first = LastRead { content: read, at: Instant::now(), trouble: None, reading: None, took: Duration::ZERO };
        let last = Arc::new(Mutex::new(first));
        let reader = Reader::start(Arc::clone(&site), Arc::clone(&last))?;
        screen.line(announcement(S::SUBJECT, listener.local_addr()?, to_all));
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = interrupt.recv() => break,
                _ = end.recv() => break,
            };
            let Ok((stream, _)) = accepted else {
                // Out of descriptors, most likely: those of others will be closed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            open.retain(|connection| !connection.is_finished());
            if open.len() == CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            let (site, last) = (Arc::clone(&site), Arc::clone(&last));
            let connection = tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = answer(&*site, &last, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(SILENT)
                    .serve_connection(TokioIo::new(stream), service);
                // A browser that goes away is not an error.
                let _ = tokio::time::timeout(LONGEST, connection).await;
            });
            open.push_back(connection.abort_handle());
        }
        drop(reader);
        Ok(Arc::clone(&last.lock().unwrap_or_else(PoisonError::into_inner).content))
    })
}

fn announcement(subject: &str, address: SocketAddr, to_all: &str) -> String {
    let who = if address.ip().is_loopback() {
        format!("this machine only; from another: ssh -L {}:{address} HOST", address.port())
    } else {
        format!("everybody who reaches this machine{to_all}")
    };
    format!("{subject} at http://{address}/ ({who}); Ctrl-C ends")
}

/// The thread that reads the files. It ends with this value, except in a file system that hangs.
struct Reader {
    _stop: Sender<()>,
}

impl Reader {
    fn start<S: Site>(site: Arc<S>, shared: Arc<Mutex<LastRead<S::Content>>>) -> anyhow::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let read = move || {
            loop {
                let begun = Instant::now();
                let mut last = shared.lock().unwrap_or_else(PoisonError::into_inner);
                last.reading = Some(begun);
                let before = Arc::clone(&last.content);
                drop(last);
                let read = site.read(&before);
                let took = begun.elapsed();
                let mut last = shared.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(content) => {
                        *last = LastRead { content, at: Instant::now(), trouble: None, reading: None, took };
                    }
                    Err(why) => (last.trouble, last.reading) = (Some(why), None),
                }
                drop(last);
                if stopped.recv_timeout(READ_EVERY.0.max(READ_EVERY.1 * took)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(read).context("cannot start a thread")?;
        Ok(Reader { _stop: stop })
    }
}

type Answer = Response<Full<Bytes>>;

fn answer<S: Site>(site: &S, last: &Mutex<LastRead<S::Content>>, request: &Request<Incoming>) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain_text(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read".into());
    }
    let path = request.uri().path();
    let made = if path == "/follow.js" {
        Ok(("text/javascript; charset=utf-8", SCRIPT.to_owned()))
    } else {
        let last = last.lock().unwrap_or_else(PoisonError::into_inner);
        let (content, age) = (Arc::clone(&last.content), last.at.elapsed());
        let patience = LATE.0.max(LATE.1 * last.took);
        let late = last.reading.is_some_and(|begun| begun.elapsed() > patience);
        let why = last.trouble.clone().or_else(|| late.then(|| "the file system does not answer".into()));
        drop(last);
        let pairs = query(request.uri().query().unwrap_or_default());
        site.answer(&Asked { path, pairs, content, trouble: why.map(|why| (why, age)) })
    };
    match made {
        Ok((kind, text)) => {
            let tag = tag(&text);
            if request.headers().get(IF_NONE_MATCH) == Some(&tag) {
                return with(StatusCode::NOT_MODIFIED, "text/plain", String::new(), Some(tag));
            }
            with(StatusCode::OK, kind, text, Some(tag))
        }
        Err(error) => plain_text(StatusCode::NOT_FOUND, format!("{error:#}")),
    }
}

/// The pairs of an address's query. Those that the page writes need no decoding.
fn query(text: &str) -> BTreeMap<&str, &str> {
    text.split('&').filter_map(|pair| pair.split_once('=')).collect()
}

fn tag(text: &str) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    HeaderValue::from_str(&format!("\"{:x}\"", hasher.finish())).unwrap_or(HeaderValue::from_static("\"\""))
}

fn plain_text(status: StatusCode, text: String) -> Answer {
    with(status, "text/plain; charset=utf-8", text, None)
}

/// Nothing is loaded from elsewhere, nothing is kept, and no other page may hold this one.
fn with(status: StatusCode, kind: &'static str, text: String, tag: Option<HeaderValue>) -> Answer {
    const POLICY: &str =
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; frame-ancestors 'none'";
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-cache"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Some(tag) = tag {
        headers.insert(ETAG, tag);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_lacks_is_added() {
        for (text, whole) in [
            ("8000", "127.0.0.1:8000"),
            (":8000", "0.0.0.0:8000"),
            ("10.0.0.5", "10.0.0.5:8460"),
            ("login:80", "login:80"),
            ("[::]:8000", "[::]:8000"),
            ("::1", "[::1]:8460"),
        ] {
            assert_eq!(address(text, "127.0.0.1:8460").as_deref(), Ok(whole), "{text}");
        }
        for text in ["host:port", "host:99999", "a:"] {
            assert!(address(text, "127.0.0.1:8460").is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_that_all_reach_says_what_they_see() {
        let announced = |text: &str| announcement("the class is", text.parse().unwrap(), " sees the names");
        assert!(announced("127.0.0.1:1").contains("ssh -L 1:127.0.0.1:1 HOST"));
        assert!(announced("0.0.0.0:1").contains("everybody who reaches this machine sees the names"));
    }

    #[test]
    fn times_are_short() {
        let shown = [59, 60, 5_999, 7_500, 172_799, 1_795_813_200].map(span);
        assert_eq!(shown, ["59 s", "1 min", "99 min", "2 h 05 min", "47 h 59 min", "20784 days"]);
    }
}
