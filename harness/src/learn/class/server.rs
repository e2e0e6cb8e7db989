//! Serves the page: HTTP, read-only. A thread reads the folder once a second, so a file system that hangs keeps no page waiting.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

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
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;

use super::page::{self, Frame, Names};
use super::view::View;
use super::{ClassFolder, ReadClass, class_report, now};
use crate::exit::Refused;
use crate::learn::route::Route;
use crate::report::{Form, Screen};

/// Where the page is served, if no address is given.
pub(super) const ADDRESS: &str = "127.0.0.1:8460";
/// How often the folder is read.
const READ_EVERY: Duration = Duration::from_secs(1);
/// A folder that has not been read for longer is in trouble.
const LATE: Duration = Duration::from_secs(5);
/// How many browsers can be connected at once; each asks every two seconds.
const CONNECTIONS: usize = 256;
/// A connection that says nothing for this long is closed.
const SILENT: Duration = Duration::from_secs(30);
/// No connection lives for longer: a browser makes another.
const LONGEST: Duration = Duration::from_secs(600);

/// `PORT`, `:PORT` and `HOST` get what is missing.
pub(super) fn address(text: &str) -> Result<String, String> {
    let (host, port) = ADDRESS.rsplit_once(':').unwrap_or_default();
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

/// What all requests see.
struct Shared {
    folder: String,
    route: String,
    hide_names: bool,
    last: Mutex<LastRead>,
}

struct LastRead {
    class: Arc<ReadClass>,
    at: Instant,
    /// Why it could not be read since.
    trouble: Option<String>,
}

/// Serves the page until SIGINT or SIGTERM, at first with what has been `read`. Returns what was read last.
///
/// # Errors
/// [`Refused`] if the address cannot be had.
pub(super) fn serve(
    address: &str,
    class: &ClassFolder,
    read: ReadClass,
    route: String,
    hide_names: bool,
    screen: &Screen,
) -> anyhow::Result<ReadClass> {
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
        let last = LastRead { class: Arc::new(read), at: Instant::now(), trouble: None };
        // Participants copy it, wherever they are.
        let folder = std::path::absolute(&class.0).unwrap_or_else(|_| class.0.clone()).display().to_string();
        let shared = Arc::new(Shared { folder, route, hide_names, last: Mutex::new(last) });
        let reader = Reader::start(class.clone(), Arc::clone(&shared))?;
        screen.line(announcement(listener.local_addr()?, hide_names));
        let places = Arc::new(Semaphore::new(CONNECTIONS));
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
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = answer(&shared, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(SILENT)
                    .serve_connection(TokioIo::new(stream), service);
                // A browser that goes away is not an error.
                let _ = tokio::time::timeout(LONGEST, connection).await;
                drop(place);
            });
        }
        drop(reader);
        let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(ReadClass::clone(&last.class))
    })
}

fn announcement(address: SocketAddr, hide_names: bool) -> String {
    let who = if address.ip().is_loopback() {
        format!("this machine only; from another: ssh -L {}:{address} HOST", address.port())
    } else if hide_names {
        "everybody who reaches this machine".to_owned()
    } else {
        "everybody who reaches this machine sees the names; --hide-names hides them".to_owned()
    };
    format!("the class is at http://{address}/ ({who}); Ctrl-C ends")
}

/// The thread that reads the folder. It ends with this value, except in a file system that hangs.
struct Reader {
    _stop: Sender<()>,
}

impl Reader {
    fn start(class: ClassFolder, shared: Arc<Shared>) -> anyhow::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let read = move || {
            loop {
                let read = class.read();
                let mut last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
                match read {
                    Ok(read) => *last = LastRead { class: Arc::new(read), at: Instant::now(), trouble: None },
                    Err(why) => last.trouble = Some(why),
                }
                drop(last);
                if stopped.recv_timeout(READ_EVERY) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        std::thread::Builder::new().spawn(read).context("cannot start a thread")?;
        Ok(Reader { _stop: stop })
    }
}

type Answer = Response<Full<Bytes>>;

fn answer(shared: &Shared, request: &Request<Incoming>) -> Answer {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain_text(StatusCode::METHOD_NOT_ALLOWED, "this page can only be read".into());
    }
    let asked = query(request.uri().query().unwrap_or_default());
    let route = asked.get("route").map_or(&*shared.route, |route| route);
    let hidden = asked.get("names").is_some_and(|names| *names == "hidden");
    let path = request.uri().path();
    let made = match path.rsplit_once('.') {
        None if path == "/" => page_of(shared, route, hidden),
        Some(("/follow", "js")) => Ok(("text/javascript; charset=utf-8", page::SCRIPT.to_owned())),
        Some(("/report", ending)) => report_of(shared, route, hidden, ending),
        _ => return plain_text(StatusCode::NOT_FOUND, "the class is at /".into()),
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

fn page_of(shared: &Shared, route: &str, hidden: bool) -> anyhow::Result<(&'static str, String)> {
    let plan = Route::find(route)?.plan()?;
    let names = match (shared.hide_names, hidden) {
        (true, _) => Names::AlwaysHidden,
        (false, true) => Names::Hidden,
        (false, false) => Names::Shown,
    };
    let last = shared.last.lock().unwrap_or_else(PoisonError::into_inner);
    let (class, age) = (Arc::clone(&last.class), last.at.elapsed());
    let why = last.trouble.clone().or_else(|| (age > LATE).then(|| "the file system does not answer".into()));
    drop(last);
    let frame = Frame {
        folder: &shared.folder,
        route,
        routes: &Route::names()?,
        names,
        broken: &class.broken,
        trouble: why.map(|why| (why, age)),
    };
    let view = View::new(plan, class.seats.clone(), now());
    Ok(("text/html; charset=utf-8", page::render(&frame, &view)))
}

fn report_of(shared: &Shared, route: &str, hidden: bool, ending: &str) -> anyhow::Result<(&'static str, String)> {
    let plan = Route::find(route)?.plan()?;
    let (form, kind) = match ending {
        "html" => (Form::Html, "text/html; charset=utf-8"),
        "csv" => (Form::Csv, "text/csv; charset=utf-8"),
        "json" => (Form::Json, "application/json"),
        "xml" => (Form::Junit, "application/xml"),
        _ => return Err(Refused("a report is .html, .csv, .json or .xml".into()).into()),
    };
    let class = Arc::clone(&shared.last.lock().unwrap_or_else(PoisonError::into_inner).class);
    let report = class_report(&class.seats, &plan, shared.hide_names || hidden, SystemTime::now());
    Ok((kind, report.render(form)?))
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
            assert_eq!(address(text).as_deref(), Ok(whole), "{text}");
        }
        for text in ["host:port", "host:99999", "a:"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_that_all_reach_says_what_they_see() {
        let announced = |text: &str, hide| announcement(text.parse().unwrap(), hide);
        assert!(announced("127.0.0.1:1", false).contains("ssh -L 1:127.0.0.1:1 HOST"));
        assert!(announced("0.0.0.0:1", false).contains("--hide-names"));
        assert!(!announced("0.0.0.0:1", true).contains("--hide-names"));
    }
}
