// SPDX-License-Identifier: Apache-2.0
//! Connections: limited in number and in idle time, encrypted where there is a certificate.

use crate::refusals::Refusals;
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

/// The limit of concurrent connections; more wait in the kernel's queue. An open page holds one.
const MAX_CONNECTIONS: usize = 256;

/// Serves connections until the future is dropped. `idle_timeout` limits the TLS handshake, the wait for the head of a
/// request, and the time that a peer leaves sent data unacknowledged.
pub async fn serve(
    listener: TcpListener,
    encrypted: Option<TlsAcceptor>,
    router: Router,
    idle_timeout: Duration,
) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let troubles = Refusals::default();
    loop {
        if free.available_permits() == 0 {
            troubles.warn(format_args!(
                "all {MAX_CONNECTIONS} connections are taken, and further clients wait"
            ));
        }
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&free).acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(cause) => {
                troubles.warn(format_args!("cannot accept a client: {cause}"));
                // A cause may be that no file descriptor is free: other connections end meanwhile.
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (encrypted, router) = (encrypted.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            prepare(&stream, idle_timeout);
            match encrypted {
                None => hold(stream, router, idle_timeout).await,
                Some(encrypted) => {
                    if let Ok(Ok(stream)) = timeout(idle_timeout, encrypted.accept(stream)).await {
                        hold(stream, router, idle_timeout).await;
                    }
                }
            }
        });
    }
}

/// Limits how long a dead peer keeps its connection. An error is ignored: it only delays the end of the connection.
fn prepare(stream: &TcpStream, idle_timeout: Duration) {
    let idle_timeout = u32::try_from(idle_timeout.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, idle_timeout);
    let _ = stream.set_nodelay(true);
}

async fn hold(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, idle_timeout: Duration) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // A client that breaks the connection is not an error.
    let _ = connection.await;
}
