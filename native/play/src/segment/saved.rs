//! The columns of a segment as arrays by name.

use sconce_env::Numbers;
use sconce_nn::Policy;
use sconce_tensor::{Error, Result};

use super::{Segment, Widths};
use crate::returns::Returns;

impl Segment {
    /// Copies the columns, without advantages.
    pub(crate) fn numbers(&self) -> Result<Numbers> {
        let mut all = Numbers::default();
        all.put_words("sizes", &[self.rows, self.steps, self.stride].map(|size| size as u32));
        all.put_words("ids", &self.ids);
        // A missing action is no finite number.
        let previous: Vec<u32> = self.previous.iter().map(|number| number.to_bits()).collect();
        all.put_words("previous", &previous);
        for (name, column) in [
            ("continuous", &self.continuous),
            ("labels", &self.labels),
            ("log_likelihoods", &self.log_likelihoods),
            ("values", &self.values),
            ("next_values", &self.next_values),
            ("rewards", &self.rewards),
            ("seen", &self.seen),
        ] {
            all.put(name, column.clone());
        }
        let (terminated, truncated) = (&self.terminated, &self.truncated);
        let flags = [("terminated", terminated), ("truncated", truncated), ("mask", &self.mask)];
        for (name, flags) in flags {
            all.put(name, flags.iter().map(|flag| f32::from(*flag)).collect());
        }
        for (name, states) in [("states", &self.states), ("teacher", &self.teacher_states)] {
            let mut own = vec![];
            for state in states {
                own.extend(state.to_vec()?);
            }
            all.put(name, own);
        }
        Ok(all)
    }

    /// The inverse of [`numbers`](Self::numbers), for a policy and the teacher of its run.
    ///
    /// # Errors
    /// `NotFound`, `Mismatch` or `Corrupt` for the columns of other environments.
    pub(crate) fn restored(
        numbers: &Numbers,
        policy: &Policy,
        teacher: Option<&Policy>,
    ) -> Result<Self> {
        let sizes = numbers.words("sizes")?;
        let [rows, steps, stride] = sizes[..] else {
            return Err(Error::mismatch("sizes of a rollout", 3, sizes.len()));
        };
        let (rows, steps, stride) = (rows as usize, steps as usize, stride as usize);
        let widths = Widths::of(policy.spec());
        let n = rows.saturating_mul(steps);
        let column = |name: &str, width: usize| {
            let own = numbers.get(name)?;
            match own.len() == n.saturating_mul(width) {
                true => Ok(own.to_vec()),
                false => Err(Error::mismatch(format!("{name} of a rollout"), n * width, own.len())),
            }
        };
        let words = |name: &str, width: usize| {
            let own = numbers.words(name)?;
            match own.len() == n.saturating_mul(width) {
                true => Ok(own),
                false => Err(Error::mismatch(format!("{name} of a rollout"), n * width, own.len())),
            }
        };
        let flags = |name: &str, width: usize| {
            let own = column(name, width)?;
            Ok::<_, Error>(own.iter().map(|flag| u8::from(*flag != 0.0)).collect())
        };
        // Without masks all actions were allowed.
        let mask_width = if numbers.get("mask")?.is_empty() { 0 } else { widths.mask };
        let states = |name: &str, policy: Option<&Policy>| {
            let zero = policy.map(|policy| policy.zero_state(rows)).transpose()?;
            let own = numbers.get(name)?;
            let width = zero.iter().flat_map(|z| &z.0).map(sconce_tensor::Tensor::elem_count).sum();
            match zero {
                Some(zero) if width > 0 => {
                    own.chunks(width).map(|own| zero.with_values(own)).collect()
                }
                _ => Ok(vec![]),
            }
        };
        let seen = numbers.get("seen")?.to_vec();
        let previous = words("previous", widths.labels)?.into_iter().map(f32::from_bits).collect();
        Ok(Segment {
            rows,
            steps,
            continuous: column("continuous", widths.continuous)?,
            ids: words("ids", widths.ids)?,
            previous,
            labels: column("labels", widths.labels)?,
            log_likelihoods: column("log_likelihoods", 1)?,
            values: column("values", 1)?,
            next_values: column("next_values", 1)?,
            rewards: column("rewards", 1)?,
            terminated: flags("terminated", 1)?,
            truncated: flags("truncated", 1)?,
            mask: flags("mask", mask_width)?,
            states: states("states", Some(policy))?,
            stride: stride.max(1),
            seen,
            teacher_states: states("teacher", teacher)?,
            returns: Returns::default(),
        })
    }
}
