//! Connections: no more than there are places for, none that keeps one and says nothing, encrypted where
//! there is a certificate.

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Connections at the same time; more wait in the kernel's queue. A page that is looked at holds one.
const PLACES: usize = 256;

/// Serves until it is dropped. `patience` is for a greeting, and for the head of a request from the moment
/// that one may come. Also how long a peer may leave what was sent to it unread.
pub async fn serve(
    listener: TcpListener,
    encrypted: Option<TlsAcceptor>,
    router: Router,
    patience: Duration,
) {
    let free = Arc::new(Semaphore::new(PLACES));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, say: others end meanwhile.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (encrypted, router) = (encrypted.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            prepare(&stream, patience);
            match encrypted {
                None => hold(stream, router, patience).await,
                Some(encrypted) => {
                    if let Ok(Ok(stream)) = timeout(patience, encrypted.accept(stream)).await {
                        hold(stream, router, patience).await;
                    }
                }
            }
        });
    }
}

/// A peer that is gone or reads nothing is given up. What the kernel refuses costs only time.
fn prepare(stream: &TcpStream, patience: Duration) {
    let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, patience);
    let _ = stream.set_nodelay(true);
}

async fn hold(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, patience: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // How a client goes is its own affair.
    let _ = connection.await;
}
