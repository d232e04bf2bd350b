//! Updates of all parameters of a policy at once, by AdamW or Adam, on an NVIDIA card, by `adamw.cu`.

use sconce_cuda::kernels::ADAMW;
use sconce_tensor::candle::Result;
use sconce_tensor::device::launch::{Launch, overwrite, pointer, unwritten};
use sconce_tensor::{DType, Device, Tensor};

/// Threads of a block, and numbers of its chunk.
const THREADS: usize = 256;
const CHUNK: usize = 4096;
/// Flags of a chunk.
const DECAYS: i32 = 1;
const BF16_GRADIENT: i32 = 2;

/// A parameter and what belongs to it, contiguous and on one card: f32, and a gradient of f32 or bf16.
#[derive(Debug, Clone, Copy)]
pub struct Parameter<'a> {
    pub p: &'a Tensor,
    pub g: &'a Tensor,
    pub mean: &'a Tensor,
    pub square: &'a Tensor,
    pub average: Option<&'a Tensor>,
    pub decays: bool,
}

/// The numbers of an update. Gradients are sums of which `learned` is the weight.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub learning_rate: f64,
    pub learned: f64,
    pub max_norm: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub decoupled_decay: f64,
    pub coupled_decay: f64,
    pub ema_decay: f64,
}

/// What an update left behind: how many there were, and the norm of the mean gradient before the clip. Where the
/// norm is not finite nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    pub updates: u64,
    pub norm: f64,
}

/// All that updates have on a card besides the parameters. It stays where it is, so that an update may be captured.
#[derive(Debug)]
pub struct AdamW {
    kinds: Vec<Kind>,
    /// Parameters, gradients, means, squares, averages, copies in bf16.
    tables: [Table; 6],
    chunks: Tensor,
    parts: Tensor,
    settings: Tensor,
    state: Tensor,
    constants: Tensor,
    /// As the card has them.
    updates: u64,
}

/// What a parameter's chunks depend on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kind {
    len: usize,
    decays: bool,
    gradient: DType,
}

impl Kind {
    fn of(parameter: &Parameter) -> Self {
        let Parameter { p, g, decays, .. } = *parameter;
        Kind { len: p.elem_count(), decays, gradient: g.dtype() }
    }

    /// `[chunks, 4]` of parameter `i`.
    fn chunks(self, i: usize) -> impl Iterator<Item = i32> {
        let decays = if self.decays { DECAYS } else { 0 };
        let flags = decays + if self.gradient == DType::BF16 { BF16_GRADIENT } else { 0 };
        (0..self.len.div_ceil(CHUNK)).flat_map(move |chunk| {
            let count = CHUNK.min(self.len - chunk * CHUNK);
            [i as i32, chunk as i32, count as i32, flags]
        })
    }
}

/// A pointer for each parameter, and what they were when they were written.
#[derive(Debug)]
struct Table {
    there: Tensor,
    pointers: Vec<i64>,
}

impl Table {
    fn new(count: usize, device: &Device) -> Result<Self> {
        let pointers = vec![0; count];
        Ok(Table { there: Tensor::from_slice(&pointers, count, device)?, pointers })
    }

    fn write<'a>(&mut self, tensors: impl Iterator<Item = Option<&'a Tensor>>) -> Result<()> {
        let pointers =
            tensors.map(|tensor| Ok(tensor.map(pointer).transpose()?.unwrap_or(0) as i64));
        let pointers = pointers.collect::<Result<Vec<i64>>>()?;
        if pointers != self.pointers {
            overwrite(&self.there, &pointers)?;
            self.pointers = pointers;
        }
        Ok(())
    }
}

impl AdamW {
    /// Of parameters such as these; nothing of none.
    pub fn new(parameters: &[Parameter]) -> sconce_tensor::Result<Option<Self>> {
        let Some(first) = parameters.first() else { return Ok(None) };
        let (p, device) = (first.p, first.p.device());
        let kinds: Vec<Kind> = parameters.iter().map(Kind::of).collect();
        let chunks: Vec<i32> = kinds.iter().enumerate().flat_map(|(i, k)| k.chunks(i)).collect();
        let table = || Table::new(parameters.len(), device);
        Ok(Some(AdamW {
            kinds,
            tables: [table()?, table()?, table()?, table()?, table()?, table()?],
            parts: unwritten(chunks.len() / 4, DType::F64, p)?,
            chunks: Tensor::from_slice(&chunks, chunks.len(), device)?,
            settings: unwritten(9, DType::F64, p)?,
            state: Tensor::from_slice(&[0f64; 3], 3, device)?,
            constants: unwritten(12, DType::F32, p)?,
            updates: 0,
        }))
    }

    /// Whether these are such parameters.
    pub fn fits(&self, parameters: &[Parameter]) -> bool {
        parameters.iter().map(Kind::of).eq(self.kinds.iter().copied())
    }

    /// Writes what an update is made of where it looks for it; `updates` were made before.
    pub fn prepare(
        &mut self,
        parameters: &[Parameter],
        settings: &Settings,
        updates: u64,
    ) -> sconce_tensor::Result<()> {
        let [p, g, means, squares, averages, _] = &mut self.tables;
        p.write(parameters.iter().map(|parameter| Some(parameter.p)))?;
        g.write(parameters.iter().map(|parameter| Some(parameter.g)))?;
        means.write(parameters.iter().map(|parameter| Some(parameter.mean)))?;
        squares.write(parameters.iter().map(|parameter| Some(parameter.square)))?;
        averages.write(parameters.iter().map(|parameter| parameter.average))?;
        self.set(settings, updates)
    }

    /// Writes the settings of what is launched, or played, from now on; `updates` were made before.
    pub fn set(&mut self, settings: &Settings, updates: u64) -> sconce_tensor::Result<()> {
        let s = settings;
        let numbers = [s.learning_rate, s.learned, s.max_norm, s.beta1, s.beta2, s.eps];
        let decays = [s.decoupled_decay, s.coupled_decay, s.ema_decay];
        overwrite(&self.settings, &[&numbers[..], &decays].concat())?;
        if updates != self.updates {
            overwrite(&self.state, &[updates as f64, 0.0, 0.0])?;
            self.updates = updates;
        }
        Ok(())
    }

    /// Takes gradients from these places from now on, which are of the sizes that the parameters have.
    pub fn point_at(&mut self, gradients: &[u64]) -> sconce_tensor::Result<()> {
        let gradients: Vec<i64> = gradients.iter().map(|place| *place as i64).collect();
        let [_, g, ..] = &mut self.tables;
        if gradients.len() != g.pointers.len() {
            return Err(sconce_tensor::Error::mismatch(
                "gradients",
                g.pointers.len(),
                gradients.len(),
            ));
        }
        if gradients != g.pointers {
            overwrite(&g.there, &gradients)?;
            g.pointers = gradients;
        }
        Ok(())
    }

    /// Where the [`state`](Self::state) is: updates, norm and refused ones, f64.
    pub fn state_there(&self) -> &Tensor {
        &self.state
    }

    /// Takes note of so many updates that were made by what was recorded.
    pub fn made(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// The update, of what was prepared. The tensors must be there until it is done: whoever frees them does it in
    /// the card's order.
    pub fn launch(&self) -> sconce_tensor::Result<()> {
        let [p, g, means, squares, averages, copies] = self.tables.each_ref().map(|t| &t.there);
        let of = |kernel: &str| Launch::of(ADAMW, kernel, &self.parts);
        let (count, block) = (self.parts.elem_count(), [THREADS, 1, 1]);
        let launch = of("adamw_squares")?.tensor(g)?.tensor(&self.chunks)?.tensor(&self.parts)?;
        // SAFETY: as adamw.cu says: a block for each chunk, of tensors whose sizes the chunks have.
        unsafe { launch.run([count, 1, 1], block, 0) }?;

        let launch = of("adamw_begin")?.tensor(&self.parts)?.int(count).tensor(&self.settings)?;
        let launch = launch.tensor(&self.state)?.tensor(&self.constants)?;
        // SAFETY: as adamw.cu says: one block.
        unsafe { launch.run([1; 3], block, 0) }?;

        let launch = of("adamw_update")?.tensor(p)?.tensor(g)?.tensor(means)?.tensor(squares)?;
        let launch = launch.tensor(averages)?.tensor(copies)?;
        let launch = launch.tensor(&self.chunks)?.tensor(&self.constants)?;
        // SAFETY: as for the squares.
        Ok(unsafe { launch.run([count, 1, 1], block, 0) }?)
    }

    /// What the last update left behind: what is waited for.
    pub fn state(&mut self) -> sconce_tensor::Result<State> {
        let state: Vec<f64> = self.state.to_vec1()?;
        self.updates = state[0] as u64;
        Ok(State { updates: self.updates, norm: state[1] })
    }
}
