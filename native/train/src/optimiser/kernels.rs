//! AdamW and Adam updates of all parameters of a policy at once, on an NVIDIA card, by `adamw.cu`.

use sconce_cuda::kernels::ADAMW;
use sconce_tensor::candle::Result;
use sconce_tensor::device::launch::{Launch, overwrite, pointer, unwritten};
use sconce_tensor::{DType, Device, Tensor};

/// Threads of a block.
const THREADS: usize = 256;
/// Elements of a chunk.
const CHUNK: usize = 4096;
/// Flags of a chunk.
const DECAYS: i32 = 1;
const BF16_GRADIENT: i32 = 2;

/// A parameter, its gradient, moments and average, contiguous and on one card: f32, with a gradient of f32 or bf16.
#[derive(Debug, Clone, Copy)]
pub struct Parameter<'a> {
    /// Elements of the parameter.
    pub p: &'a Tensor,
    /// Sum of the parameter's gradients.
    pub g: &'a Tensor,
    /// Mean of gradients.
    pub mean: &'a Tensor,
    /// Mean of squared gradients.
    pub square: &'a Tensor,
    /// Average of the parameter over the updates, if one is kept.
    pub average: Option<&'a Tensor>,
    /// Whether weight decay applies to the parameter.
    pub decays: bool,
}

/// The settings of an update. Gradients are sums: the mean gradient is the sum divided by `learned`.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Learning rate of the update.
    pub learning_rate: f64,
    /// Sum of the weights in the sums of gradients.
    pub learned: f64,
    /// Largest norm of the mean gradient.
    pub max_norm: f64,
    /// Decay rate of the mean of gradients.
    pub beta1: f64,
    /// Decay rate of the mean of squared gradients.
    pub beta2: f64,
    /// Constant added to the denominator of the update.
    pub eps: f64,
    /// Decoupled weight decay, applied apart from the gradient.
    pub decoupled_decay: f64,
    /// Coupled weight decay, added to the gradient.
    pub coupled_decay: f64,
    /// Decay rate of the averages.
    pub ema_decay: f64,
}

/// State after an update. An update whose norm is not finite changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// Number of updates so far.
    pub updates: u64,
    /// Norm of the mean gradient before the clip.
    pub norm: f64,
}

/// The tensors of an update on a card besides the parameters. Their addresses stay fixed, so that an update can be
/// captured.
#[derive(Debug)]
pub struct AdamW {
    kinds: Vec<Kind>,
    /// Pointers to parameters, gradients, means, squares, averages and bf16 copies.
    tables: [Table; 6],
    chunks: Tensor,
    parts: Tensor,
    settings: Tensor,
    state: Tensor,
    constants: Tensor,
    /// Number of updates on the card.
    updates: u64,
}

/// The properties of a parameter that its chunks depend on.
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

    /// The chunks of parameter `i` as kernels read them, `[chunks, 4]`.
    fn chunks(self, i: usize) -> impl Iterator<Item = i32> {
        let decays = if self.decays { DECAYS } else { 0 };
        let flags = decays + if self.gradient == DType::BF16 { BF16_GRADIENT } else { 0 };
        (0..self.len.div_ceil(CHUNK)).flat_map(move |chunk| {
            let count = CHUNK.min(self.len - chunk * CHUNK);
            [i as i32, chunk as i32, count as i32, flags]
        })
    }
}

/// One pointer for each parameter, on the card, and a host copy of the pointers written last.
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
    /// Prepares updates of parameters like these; `None` for no parameters.
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

    /// Whether these parameters have the sizes and types that the update was made for.
    pub fn fits(&self, parameters: &[Parameter]) -> bool {
        parameters.iter().map(Kind::of).eq(self.kinds.iter().copied())
    }

    /// Writes pointers and settings of the next update, which follows `updates` earlier ones.
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

    /// Writes the settings of all updates launched or replayed from now on, after `updates` earlier ones.
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

    /// Sets the addresses of the gradients for all later updates. Gradients have the sizes of the parameters.
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

    /// The card's copy of [`state`](Self::state), f64: updates, norm, refused updates.
    pub fn state_there(&self) -> &Tensor {
        &self.state
    }

    /// Sets the number of updates, after recorded updates were replayed.
    pub fn made(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Launches the prepared update. The tensors must live until the update is done; a free that is ordered on the
    /// card's stream after the launch is late enough.
    pub fn launch(&self) -> sconce_tensor::Result<()> {
        let [p, g, means, squares, averages, copies] = self.tables.each_ref().map(|t| &t.there);
        let of = |kernel: &str| Launch::of(ADAMW, kernel, &self.parts);
        let (count, block) = (self.parts.elem_count(), [THREADS, 1, 1]);
        let launch = of("adamw_squares")?.tensor(g)?.tensor(&self.chunks)?.tensor(&self.parts)?;
        // SAFETY: the launch is what adamw.cu requires: a block for each chunk, of tensors of the sizes in the chunks.
        unsafe { launch.run([count, 1, 1], block, 0) }?;

        let launch = of("adamw_begin")?.tensor(&self.parts)?.int(count).tensor(&self.settings)?;
        let launch = launch.tensor(&self.state)?.tensor(&self.constants)?;
        // SAFETY: the launch is what adamw.cu requires: one block.
        unsafe { launch.run([1; 3], block, 0) }?;

        let launch = of("adamw_update")?.tensor(p)?.tensor(g)?.tensor(means)?.tensor(squares)?;
        let launch = launch.tensor(averages)?.tensor(copies)?;
        let launch = launch.tensor(&self.chunks)?.tensor(&self.constants)?;
        // SAFETY: the launch is what adamw.cu requires: a block for each chunk, of tensors of the sizes in the chunks.
        Ok(unsafe { launch.run([count, 1, 1], block, 0) }?)
    }

    /// Waits for the last update and reads its state.
    pub fn state(&mut self) -> sconce_tensor::Result<State> {
        let state: Vec<f64> = self.state.to_vec1()?;
        self.updates = state[0] as u64;
        Ok(State { updates: self.updates, norm: state[1] })
    }
}
