// SPDX-License-Identifier: Apache-2.0
//! A population over several supervisors, each of which holds as many guests as one process can.

use super::error::{GuestError, Result};
use super::{Answer, Guard, Population, Request, SUPERVISOR, Spec, Supervisor, command};
use std::collections::BTreeMap;
use std::time::Duration;
use vtax_host::HostError;

/// Supervisors below this one; all but the last are full.
#[derive(Debug)]
pub(super) struct Shards {
    spec: Spec,
    capacity: u32,
    shards: Vec<(Supervisor, u32)>,
    random: fastrand::Rng,
}

impl Shards {
    pub(super) fn new(spec: Spec, capacity: u32) -> Self {
        Self {
            spec,
            capacity,
            shards: Vec::new(),
            random: fastrand::Rng::with_seed(1),
        }
    }

    fn start(&mut self) -> Result<()> {
        let count = self.count();
        let spec = Spec {
            first: self.spec.first + count,
            maximum: self.capacity.min(self.spec.maximum.saturating_sub(count)),
            ..self.spec.clone()
        };
        let supervisor = Supervisor::start(command(&spec.command_line()?))?;
        self.shards.push((supervisor, 0));
        Ok(())
    }
}

impl Population for Shards {
    fn count(&self) -> u32 {
        self.shards.iter().map(|(_, count)| count).sum()
    }

    fn grow(&mut self, to: u32, guard: &mut Guard, answer: &mut Answer) -> Result<()> {
        while self.count() < to {
            let capacity = self.capacity;
            if self
                .shards
                .last()
                .is_none_or(|(_, count)| *count >= capacity)
            {
                self.start()?;
            }
            let wanted = to - self.count();
            let Some((supervisor, count)) = self.shards.last_mut() else {
                return Ok(());
            };
            let goal = count.saturating_add(wanted).min(capacity);
            let grown = supervisor.ask(&Request::Grow(goal))?;
            *count = grown.population;
            answer.create.extend(grown.create);
            answer.boot.extend(grown.boot);
            guard.cpu += Duration::from_secs_f64(grown.guard_cpu.max(0.0));
            if let Some(why) = grown.refused {
                return Err(GuestError::Reported(why));
            }
            if grown.exceeded.is_some() {
                guard.exceeded = grown.exceeded;
                return Ok(());
            }
        }
        Ok(())
    }

    fn shrink(&mut self, to: u32) -> Result<()> {
        while self.count() > to {
            let surplus = self.count() - to;
            let Some((supervisor, count)) = self.shards.last_mut() else {
                return Ok(());
            };
            if *count <= surplus {
                // A request rather than a signal, so that the supervisor also removes everything that would outlive its
                // processes.
                let ended = supervisor.ask(&Request::Shrink(0));
                self.shards.pop();
                ended?;
                continue;
            }
            let answer = supervisor.ask(&Request::Shrink(*count - surplus))?;
            *count = answer.population;
            if let Some(why) = answer.refused {
                return Err(GuestError::Reported(why));
            }
        }
        Ok(())
    }

    fn ask(&mut self) -> Result<Duration> {
        let full = self.shards.iter().filter(|(_, count)| *count > 0).count();
        if full == 0 {
            return Err(GuestError::Empty);
        }
        let chosen = self.random.usize(..full);
        let Some((supervisor, _)) = self.shards.get_mut(chosen) else {
            return Err(GuestError::Empty);
        };
        let answer = supervisor.ask(&Request::Probe(1))?;
        match (answer.probe.first(), answer.refused) {
            (Some(micros), _) => Ok(Duration::from_secs_f64(micros.max(0.0) / 1e6)),
            (None, Some(why)) => Err(GuestError::Reported(why)),
            (None, None) => Err(GuestError::Host(HostError::Protocol {
                peer: SUPERVISOR.to_owned(),
                detail: "a probe has neither a time nor a reason".to_owned(),
            })),
        }
    }

    fn facts(&self) -> BTreeMap<String, String> {
        [(
            "shards".to_owned(),
            format!("one process for every {} guests", self.capacity),
        )]
        .into()
    }
}
