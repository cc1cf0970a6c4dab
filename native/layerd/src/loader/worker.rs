//! `layerd work`: from the first instruction to the threads that go on for ever.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::json;

use super::Loader;
use super::book::Book;
use super::fetch::THREADS;
use super::readers::Readers;
use crate::data_dir::DataDir;
use crate::failure::errno_name;
use crate::family;
use crate::family::holder;
use crate::family::roles::{Role, Roles};
use crate::family::shared::{MAX_EVENTS, Shared};
use crate::filled;
use crate::options::Serve;
use crate::peer::client::Peers;
use crate::peer::server;
use crate::peer::tls::Tls;
use crate::sys::fanotify::Event;
use crate::sys::{Errno, process};
use daemon::log::{Level, Log};

/// Between two tries to see to it that there is a holder, so that one which ends at once is not started without a break.
const HOLDER_PAUSE: Duration = Duration::from_millis(50);

/// Never returns but on failure.
pub fn work(options: &Serve) -> Result<(), String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    process::set_name(c"layerd");
    process::ignore_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGIO]);
    process::raise_file_limit();
    let shared = Shared::map(family::shared()).map_err(failed("shared memory"))?;
    // Before anything else is opened: the numbers must still be free.
    let reserved = reserve(&shared).map_err(failed("descriptors"))?;
    let data = DataDir::open(&options.data)?;
    let roles = Roles::open(&data.run).map_err(failed("layerd.lock"))?;
    roles.join().map_err(failed("layerd.lock"))?;
    if !roles.try_take(Role::Worker).map_err(failed("layerd.lock"))? {
        return Err("another worker lives".to_owned());
    }
    if events(&shared).any(|event| !reserved.contains(&event.fd)) {
        return Err("another worker lived meanwhile".to_owned());
    }
    shared.pid(Role::Worker).store(std::process::id(), Ordering::Relaxed);
    let left: Vec<u32> = (0..MAX_EVENTS as u32).filter(|slot| shared.event(*slot).is_some()).collect();
    let readers = Readers::load(&shared);
    let tls = options.peers.as_ref().map(|peers| Tls::read(&peers.tls)).transpose()?;
    let peers = options.peers.as_ref().zip(tls.as_ref()).filter(|(peers, _)| !peers.addresses.is_empty());
    let loader = Arc::new(Loader {
        options: options.clone(),
        source: crate::source::open(&options.blob, options.blob_account.as_deref())?,
        peers: peers.map(|(peers, tls)| Peers::new(&peers.addresses, tls.client.clone(), peers.wait)),
        log: Log::new("layerd", Some("worker")),
        boot: filled::boot().map_err(|error| format!("boot_id: {error}"))?,
        layers: data.layers,
        run: data.run,
        book: Mutex::new(Book::new(readers, &left)),
        work: Condvar::new(),
        progress: Condvar::new(),
        pressure: Condvar::new(),
        used: Condvar::new(),
        asked: Condvar::new(),
        registry: Mutex::new(()),
        saving: Mutex::new(()),
        allocated: AtomicU64::new(0),
        is_full: AtomicBool::new(false),
        shared,
    });
    loader.restore();
    let spawn = |name: &str, work: fn(&Loader)| {
        let loader = loader.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || work(&loader)).map(drop).map_err(|error| format!("thread {name}: {error}"))
    };
    for _ in 0..THREADS {
        spawn("fetch", |loader| loader.fetch())?;
    }
    spawn("events", |loader| loader.read_events())?;
    spawn("expiry", |loader| loader.expire())?;
    for slot in &left {
        loader.take_again(*slot);
    }
    loader.log.write(Level::Info, "filling", &json!({ "layers": loader.layer_count(), "recovered": left.len() }));
    let closed = loader.resume();
    spawn("control", |loader| loader.control())?;
    loader.survey(&closed);
    spawn("traces", |loader| loader.save_traces())?;
    spawn("evict", |loader| loader.evict())?;
    if let (Some(address), Some(tls)) = (options.peers.as_ref().and_then(|peers| peers.listen), tls) {
        let loader = loader.clone();
        let thread = std::thread::Builder::new().name("peers".to_owned());
        let started = thread.spawn(move || server::serve(&loader, address, &tls.server));
        started.map_err(|error| format!("thread peers: {error}"))?;
    }
    loader.keep_holder(&roles)
}

/// Events that a worker before has left.
fn events(shared: &Shared) -> impl Iterator<Item = Event> + '_ {
    (0..MAX_EVENTS as u32).filter_map(|slot| shared.event(slot))
}

/// Keeps the numbers of events without an answer from being given to new ones.
fn reserve(shared: &Shared) -> crate::sys::Result<Vec<RawFd>> {
    let numbers: Vec<RawFd> = events(shared).map(|event| event.fd).collect();
    for number in numbers.iter().filter(|number| **number >= family::FIRST_FREE) {
        process::place_fd(process::fixed(0), *number)?;
    }
    Ok(numbers)
}

impl Loader {
    /// Waits for the holder's end, and starts another unless the standby is there. For ever.
    fn keep_holder(&self, roles: &Roles) -> Result<(), String> {
        loop {
            roles.wait_until_vacant(Role::Holder).map_err(|errno| format!("layerd.lock: {}", errno_name(errno)))?;
            if let Err(error) = holder::spawn("hold", &self.options).and_then(|mut child| child.wait()) {
                self.log.write(Level::Error, "no-holder", &json!({ "message": error.to_string() }));
            }
            std::thread::sleep(HOLDER_PAUSE);
        }
    }
}
