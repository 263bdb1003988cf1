// SPDX-License-Identifier: Apache-2.0
//! The errors of serving the page ([`WebError`]) and of single requests ([`RequestError`]).

use crate::machines::MachineError;
use crate::plans::PlanFileError;
use crate::refusals::Refusals;
use crate::run_manager::RunError;
use crate::run_name::{NameError, NewRunError};
use crate::testbed::TestbedError;
use axum::extract::rejection::QueryRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use tracing::error;
use vtax_files::FileError;
use vtax_http::TokenError;
use vtax_results::ResultsError;

/// An error that prevents the page from being served.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    /// Other hosts could reach the address.
    #[error(
        "cannot serve the page on {0}: other hosts would reach it, {1}; give --certificate and --key, and --token-file or --watch-token-file, or a loopback address such as 127.0.0.1:19191, and forward it from elsewhere: ssh -L 19191:127.0.0.1:19191 THIS-HOST"
    )]
    LeavesTheHost(SocketAddr, &'static str),
    /// A file of the certificate cannot be used.
    #[error("cannot use {} for encryption: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file of a token cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The kernel returns no random numbers.
    #[error("cannot make a token: {0}")]
    RandomToken(io::Error),
    /// The file of the new token cannot be written.
    #[error(
        "cannot keep the operator's token: {0}; give one with --token-file FILE, or --watch-only"
    )]
    TokenFile(FileError),
    /// The kernel cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The address cannot be listened on.
    #[error("cannot serve the page on {address}: {cause}{}", remedy(.cause))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        cause: io::Error,
    },
    /// The host cannot be read at all.
    #[error(transparent)]
    Observe(#[from] vtax_observe::ObserveError),
}

fn remedy(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another program has it, perhaps a page that is open already: give another port with --listen"
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 need root: give another one",
        io::ErrorKind::AddrNotAvailable => "; no interface of this host has that address",
        _ => "",
    }
}

/// The reason for an error response. [`RequestError::status`] alone maps it to an HTTP status.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The query has a wrong field.
    #[error("{}", .0.body_text())]
    Query(#[from] QueryRejection),
    /// The media type of the body is not JSON. A form of another site cannot set that type.
    #[error("only application/json is understood here")]
    ContentType,
    /// The body is not the JSON document that this path takes.
    #[error("not understood: {0}")]
    Body(serde_json::Error),
    /// No file of the page has that path.
    #[error("there is no such page")]
    NoPage,
    /// The history has no series of that guest.
    #[error("nothing is kept of that guest")]
    NoHistory,
    /// A path that names no results directory.
    #[error(transparent)]
    Name(#[from] NameError),
    /// No run has that name.
    #[error("there is no run in {dir:?} below {}", root.display())]
    NoRun {
        /// The requested name.
        dir: String,
        /// The directory of all results.
        root: PathBuf,
    },
    /// Neither the directory nor a record of the run exists.
    #[error("there is no run in {}", .0.display())]
    Unknown(PathBuf),
    /// The results cannot be read.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The trials cannot be analysed.
    #[error(transparent)]
    Analysis(#[from] Arc<ResultsError>),
    /// The run has no report.
    #[error(
        "there is no report of this run to show ({cause}); this makes it: vtax report {}",
        path.display()
    )]
    NoReport {
        /// The results directory.
        path: PathBuf,
        /// The reason why the file cannot be opened.
        cause: io::Error,
    },
    /// The report cannot be read.
    #[error("cannot read the report of {dir:?}: {cause}")]
    Report {
        /// The name of the run.
        dir: String,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// No run has a plan of this name.
    #[error("no run below {root} has a plan named {plan:?}", root = root.display())]
    NoPlanRun {
        /// The name of the plan.
        plan: String,
        /// The root of the results.
        root: PathBuf,
    },
    /// Too few or too many runs to compare or to draw.
    #[error("give {least} to {most} runs to {action}")]
    RunCount {
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
        /// The operation.
        action: &'static str,
    },
    /// The data of the atlas in the program are damaged.
    #[error(transparent)]
    Atlas(#[from] vtax_atlas::AtlasError),
    /// A plan cannot be read.
    #[error(transparent)]
    PlanFile(#[from] PlanFileError),
    /// The server has no operator's token.
    #[error("this server only shows: it was started without an operator’s token")]
    ReadOnly,
    /// The response cannot be written as JSON.
    #[error("cannot write the response as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A note is empty or too long.
    #[error("a note has 1 to {0} bytes of text")]
    NoteLength(usize),
    /// A note cannot be written.
    #[error(
        "cannot write the note into {}: {cause}; vtax web must run as the owner of that directory",
        path.display()
    )]
    Note {
        /// The file of the notes.
        path: PathBuf,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// A note on a trial that the run does not have.
    #[error("there is no trial {trial}: this run has {planned}, and the first is 0")]
    NoTrial {
        /// The trial of the note.
        trial: u32,
        /// How many trials the run has.
        planned: usize,
    },
    /// A NIC or a population of micro VMs refused, or did not answer.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A run was not started, paused or ended.
    #[error(transparent)]
    Run(#[from] RunError),
    /// No results directory of a new run can have that name.
    #[error(transparent)]
    NewRun(#[from] NewRunError),
    /// The settings of the testbed are wrong.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The work panicked.
    #[error("vtax failed to do this: a defect")]
    Defect,
}

impl RequestError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Query(_) | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Defect | Self::Json(_) => StatusCode::INTERNAL_SERVER_ERROR,
            // The state of the resource does not allow the change.
            Self::NoteLength(_)
            | Self::Note { .. }
            | Self::NoTrial { .. }
            | Self::Machine(_)
            | Self::Run(_)
            | Self::NewRun(_)
            | Self::Testbed(_) => StatusCode::CONFLICT,
            // What the request names is not there, or cannot be read.
            _ => StatusCode::NOT_FOUND,
        }
    }
}

/// The requests that failed because a file cannot be read or written. The page repeats some of them.
static FILES: LazyLock<Refusals> = LazyLock::new(Refusals::default);

impl RequestError {
    /// Logs a failure that is not the client's.
    fn log(&self) {
        match self {
            Self::Defect | Self::Json(_) | Self::Atlas(_) => error!("{self}"),
            Self::Results(_)
            | Self::Analysis(_)
            | Self::Report { .. }
            | Self::PlanFile(_)
            | Self::Note { .. } => FILES.warn(self),
            _ => {}
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        self.log();
        refusal(self.status(), &self.to_string())
    }
}

/// An error as `{"error": …}`.
pub fn refusal(status: StatusCode, why: &str) -> Response {
    let body = serde_json::json!({ "error": why }).to_string();
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_what_fails_on_this_side_and_not_what_a_client_asks_wrongly() {
        let logged =
            |error: RequestError| vtax_log::testing::logged(|| drop(error.into_response()));
        let defect = logged(RequestError::Defect);
        assert!(defect.starts_with("<3>vtax_web::error: "), "{defect}");
        let note = logged(RequestError::Note {
            path: "/results/notes".into(),
            cause: io::Error::from(io::ErrorKind::PermissionDenied),
        });
        let start = "<4>vtax_web::refusals: cannot write the note into /results/notes: ";
        assert!(note.starts_with(start), "{note}");
        assert_eq!(logged(RequestError::NoPage), "");
    }
}
