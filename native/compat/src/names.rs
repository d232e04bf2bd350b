//! Pairs of a parameter of ExPhil and a weight of Sconce. An import and an export read the same pairs.

use sconce_nn::spec::{Backbone, ExphilJambaConfig, Layered};

use crate::{Error, Result, Spec};

/// A parameter, the weight that has its numbers, and the order of the numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Name of the parameter, `LAYER.PARAMETER`.
    pub theirs: String,
    /// Name of the weight.
    pub ours: String,
    /// How the numbers are arranged.
    pub order: Order,
}

/// How the numbers of a parameter are arranged in a weight.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// In the same order.
    Same,
    /// A matrix `[in, out]`, as `[out, in]`.
    Transposed,
    /// A kernel `[k, 1, c]` of a convolution, as `[c, 1, k]`.
    Reversed,
    /// A matrix or a bias of one gate: rows `gate` of `gates` of the weight.
    Gate {
        /// Index of the gate.
        gate: usize,
        /// Number of gates.
        gates: usize,
        /// A second weight, which the parameter adds on export. An import fills it with zeros.
        and: Option<String>,
    },
    /// A key of random numbers, whose draw is row `layer` of the weight.
    Drawn {
        /// Index of the layer.
        layer: usize,
    },
}

/// Differences between files of one policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Variant {
    /// LSTM and GRU in the layout of Edifice's fused kernels: gates side by side.
    pub fused: bool,
    /// Layers of Mamba are named `mamba_ssd_block_I`.
    pub ssd: bool,
}

/// All pairs of a Spec.
///
/// # Errors
/// `Mismatch` for a backbone, heads or an option that ExPhil does not have.
pub fn pairs(spec: &Spec, variant: Variant) -> Result<Vec<Pair>> {
    let mut all = Pairs(vec![]);
    let input = spec.embedding.width();
    match &spec.backbone {
        Backbone::Mlp(config) => {
            let mut width = input;
            for (i, &size) in config.hidden_sizes.iter().enumerate() {
                let ours = format!("backbone.layers.{i}");
                all.dense(&format!("backbone_dense_{i}"), &format!("{ours}.dense"));
                if config.layer_norm {
                    all.norm(&format!("backbone_ln_{i}"), &format!("{ours}.norm"));
                }
                if config.residual && (i == 0 || size != width) {
                    all.dense(&format!("backbone_proj_{i}"), &format!("{ours}.proj"));
                }
                width = size;
            }
        }
        Backbone::Lstm(config) => {
            let norms = [config.input_norm.then_some("backbone"), config.layer_norm.then_some("")];
            all.recurrent(&LSTM, config, "backbone", norms, config.initial_state, variant);
        }
        Backbone::Gru(config) => {
            let norms = [config.input_norm.then_some("backbone"), config.layer_norm.then_some("")];
            all.recurrent(&GRU, config, "backbone", norms, config.initial_state, variant);
        }
        Backbone::MinGru(config) => {
            let layers = [("gate", "linear_z"), ("candidate", "linear_h")];
            all.min_rnn("min_gru", &layers, config, input);
        }
        Backbone::MinLstm(config) => {
            let layers = [("forget", "linear_f"), ("input", "linear_i"), ("candidate", "linear_h")];
            all.min_rnn("min_lstm", &layers, config, input);
        }
        Backbone::ExphilLstmHybrid(config) => {
            let (under, norms) = ("backbone.lstm", [Some("backbone"), Some("")]);
            all.recurrent(&LSTM, config, under, norms, config.initial_state, variant);
            all.dense("lstm_to_attn_proj", "backbone.dense");
            all.dense("hybrid_attn_qkv", "backbone.qkv");
            all.dense("hybrid_attn_output", "backbone.out");
            all.norm("attn_norm", "backbone.norm");
        }
        Backbone::ExphilDeepResLstm(config) => {
            all.dense("encoder", "backbone.encoder");
            for layer in 0..config.num_layers {
                let (theirs, ours) = (layer + 1, format!("backbone.layers.{layer}"));
                all.norm(&format!("block_{theirs}_prenorm"), &format!("{ours}.norm"));
                all.cell(&LSTM, (layer, 0), &format!("{ours}.lstm"), config.initial_state, variant);
                all.dense(&format!("decoder_{theirs}"), &format!("{ours}.decoder"));
            }
            all.norm("final_norm", "backbone.norm");
        }
        Backbone::ExphilAttention(config) => {
            all.dense("input_proj", "backbone.input");
            for layer in 0..config.num_layers {
                let (theirs, ours) = (layer + 1, format!("backbone.layers.{layer}"));
                all.dense(&format!("layer_{theirs}_attn_qkv"), &format!("{ours}.qkv"));
                for name in ["ffn1", "ffn2"] {
                    all.dense(&format!("layer_{theirs}_{name}"), &format!("{ours}.{name}"));
                }
                for name in ["norm1", "norm2"] {
                    all.norm(&format!("layer_{theirs}_{name}"), &format!("{ours}.{name}"));
                }
            }
        }
        Backbone::ExphilMamba(config) => {
            all.projection(config, input);
            let block = if variant.ssd { "mamba_ssd_block" } else { "mamba_block" };
            for layer in 0..config.num_layers {
                let (theirs, ours) =
                    (format!("{block}_{}", layer + 1), format!("backbone.layers.{layer}"));
                all.norm(&format!("{theirs}_norm"), &format!("{ours}.norm"));
                let (from, to) = (format!("{theirs}_conv_dw_conv"), format!("{ours}.mixer.conv1d"));
                all.add(format!("{from}.kernel"), format!("{to}.weight"), Order::Reversed);
                all.add(format!("{from}.bias"), format!("{to}.bias"), Order::Same);
                all.selective(&theirs, &format!("{ours}.mixer"));
            }
        }
        Backbone::ExphilGatedSsm(config) => {
            all.projection(config, input);
            for layer in 0..config.num_layers {
                let (theirs, ours) =
                    (format!("mamba_block_{}", layer + 1), format!("backbone.layers.{layer}"));
                all.norm(&format!("{theirs}_norm"), &format!("{ours}.norm"));
                all.gated(&theirs, &format!("{ours}.mixer"));
            }
        }
        Backbone::ExphilJamba(config) => all.jamba(config, input),
        other => {
            let known = format!("one of {}", KNOWN.join(", "));
            return Err(Error::mismatch("backbone", known, other.name()));
        }
    }
    for head in &spec.heads.parts {
        let name = &head.name;
        all.dense(&format!("{name}_hidden"), &format!("heads.{name}_hidden"));
        all.dense(&format!("{name}_logits"), &format!("heads.{name}_logits"));
    }
    Ok(all.0)
}

/// Backbones of ExPhil that can be read.
pub const KNOWN: [&str; 14] = [
    "mlp",
    "lstm",
    "gru",
    "min_gru",
    "min_lstm",
    "mamba",
    "mamba_2",
    "mamba_ssd",
    "sliding_window",
    "attention",
    "lstm_hybrid",
    "gated_ssm",
    "jamba",
    "deep_res_lstm",
];

/// A recurrent cell: its name, the names of its gates in the order of its rows in Sconce, and its states.
struct Cell {
    name: &'static str,
    gates: &'static [&'static str],
    states: &'static [&'static str],
}

const LSTM: Cell = Cell { name: "lstm", gates: &["i", "f", "g", "o"], states: &["h", "c"] };
const GRU: Cell = Cell { name: "gru", gates: &["r", "z", "n"], states: &["h"] };

struct Pairs(Vec<Pair>);

impl Pairs {
    fn add(&mut self, theirs: String, ours: String, order: Order) {
        self.0.push(Pair { theirs, ours, order });
    }

    fn dense(&mut self, theirs: &str, ours: &str) {
        self.add(format!("{theirs}.kernel"), format!("{ours}.weight"), Order::Transposed);
        self.add(format!("{theirs}.bias"), format!("{ours}.bias"), Order::Same);
    }

    fn norm(&mut self, theirs: &str, ours: &str) {
        self.add(format!("{theirs}.gamma"), format!("{ours}.weight"), Order::Same);
        self.add(format!("{theirs}.beta"), format!("{ours}.bias"), Order::Same);
    }

    /// A layer of LSTM or GRU. `layers` are its index in the file, from 0, and in the weights under `under`.
    fn cell(
        &mut self,
        cell: &Cell,
        layers: (usize, usize),
        under: &str,
        drawn: bool,
        variant: Variant,
    ) {
        let (name, count) = (format!("{}_{}", cell.name, layers.0 + 1), cell.gates.len());
        let [weight_ih, weight_hh, bias_ih, bias_hh] =
            ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
                .map(|of| format!("{under}.{of}_l{}", layers.1));
        if variant.fused {
            self.add(format!("{name}_input_proj.kernel"), weight_ih, Order::Transposed);
            self.add(format!("{name}_input_proj.bias"), bias_ih, Order::Same);
            let recurrent = format!("{name}_fused_scan.{name}_recurrent_kernel");
            return self.add(recurrent, weight_hh, Order::Transposed);
        }
        for (gate, of) in cell.gates.iter().enumerate() {
            let order = |and| Order::Gate { gate, gates: count, and };
            self.add(format!("{name}.input_kernel.wi{of}"), weight_ih.clone(), order(None));
            self.add(format!("{name}.hidden_kernel.wh{of}"), weight_hh.clone(), order(None));
            if (cell.name, *of) == ("gru", "n") {
                self.add(format!("{name}.bias.bin"), bias_ih.clone(), order(None));
                self.add(format!("{name}.bias.bhn"), bias_hh.clone(), order(None));
            } else {
                let and = Some(bias_hh.clone());
                self.add(format!("{name}.bias.b{of}"), bias_ih.clone(), order(and));
            }
        }
        for state in cell.states.iter().filter(|_| drawn) {
            let key = format!("{name}_{state}_hidden_state.key");
            let order = Order::Drawn { layer: layers.0 };
            self.add(key, format!("backbone.initial_state.{state}"), order);
        }
    }

    /// Layers of LSTM or GRU. `norms` are the place of the norm of the input, and whether layers have norms.
    fn recurrent(
        &mut self,
        cell: &Cell,
        config: &impl Layered,
        under: &str,
        norms: [Option<&str>; 2],
        drawn: bool,
        variant: Variant,
    ) {
        if let Some(place) = norms[0] {
            self.norm("input_ln", &format!("{place}.input_norm"));
        }
        for layer in 0..config.trunk().num_layers {
            self.cell(cell, (layer, layer), under, drawn, variant);
            if norms[1].is_some() {
                let norm = format!("{}_{}_ln", cell.name, layer + 1);
                self.norm(&norm, &format!("{under}.norms.{layer}"));
            }
        }
    }

    /// The projections that all state spaces of ExPhil have.
    fn selective(&mut self, theirs: &str, ours: &str) {
        for (their, our) in [
            ("in_proj", "in_proj"),
            ("ssm_bc_proj", "bc_proj"),
            ("ssm_dt_rank", "dt_rank"),
            ("ssm_dt_proj", "dt_proj"),
            ("out_proj", "out_proj"),
        ] {
            self.dense(&format!("{theirs}_{their}"), &format!("{ours}.{our}"));
        }
    }

    fn gated(&mut self, theirs: &str, ours: &str) {
        self.dense(&format!("{theirs}_conv_proj"), &format!("{ours}.conv_proj"));
        self.selective(theirs, ours);
    }

    fn jamba(&mut self, config: &ExphilJambaConfig, input: usize) {
        self.projection(config, input);
        for layer in 0..config.num_layers {
            let ours = format!("backbone.layers.{layer}");
            if !(layer + 1).is_multiple_of(config.attention_every) {
                let theirs = format!("layer_{}_backbone", layer + 1);
                self.norm(&format!("{theirs}_pre_norm"), &format!("{ours}.norm"));
                self.norm(&format!("{theirs}_norm"), &format!("{ours}.mixer.norm"));
                self.gated(&theirs, &format!("{ours}.mixer"));
                continue;
            }
            let theirs = format!("layer_{}_attn", layer + 1);
            self.norm(&format!("{theirs}_pre_norm"), &format!("{ours}.norm"));
            if config.num_heads * config.head_dim != config.hidden_size {
                for part in ["proj_in", "proj_out"] {
                    self.dense(
                        &format!("{theirs}_attn_{part}"),
                        &format!("{ours}.attention.{part}"),
                    );
                }
            }
            self.dense(&format!("{theirs}_qkv"), &format!("{ours}.attention.qkv"));
            self.norm(&format!("{theirs}_ffn_pre_norm"), &format!("{ours}.ffn_norm"));
            for part in ["ffn1", "ffn2"] {
                self.dense(&format!("{theirs}_{part}"), &format!("{ours}.{part}"));
            }
        }
        self.norm("final_norm", "backbone.norm");
    }

    /// The projection of the input, which a file has only if it changes the width.
    fn projection(&mut self, config: &impl Layered, input: usize) {
        if config.trunk().hidden_size != input {
            self.dense("input_projection", "backbone.input");
        }
    }

    fn min_rnn(
        &mut self,
        cell: &str,
        layers: &[(&str, &str)],
        config: &impl Layered,
        input: usize,
    ) {
        self.projection(config, input);
        for layer in 0..config.trunk().num_layers {
            let (theirs, ours) =
                (format!("{cell}_{}", layer + 1), format!("backbone.layers.{layer}"));
            self.norm(&format!("{theirs}_norm"), &format!("{ours}.norm"));
            for (their, our) in layers {
                self.dense(&format!("{theirs}_{their}"), &format!("{ours}.cell.{our}"));
            }
        }
        self.norm("final_norm", "backbone.norm");
    }
}
