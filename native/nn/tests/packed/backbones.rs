//! Every backbone with random sizes.

use sconce_nn::spec::{
    AttentionConfig, Backbone, ExpandConfig, ExphilHybridConfig, ExphilLstmConfig,
    ExphilMambaConfig, GlaConfig, GriffinConfig, HawkConfig, HeadsConfig, JambaConfig,
    Mamba2Config, MambaConfig, MlpConfig, NormEps, RecurrentConfig, StackConfig, StateConfig,
};
use sconce_tensor::rng::Rng;

/// Random numbers of a test. Each has an index of its own.
pub struct Numbers {
    rng: Rng,
    next: u64,
}

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers { rng: Rng::new(seed, "plan", 0), next: 0 }
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.rng.u32(self.next) as usize % n
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn normal(&mut self) -> f32 {
        self.next += 1;
        self.rng.normal(self.next)
    }
}

/// One generator per backbone. Sizes include odd ones, and stacks have one or more layers. No norm has fewer than 6
/// numbers, because a norm over a few numbers can amplify rounding errors.
pub const BACKBONES: &[fn(&mut Numbers) -> Backbone] = &[
    |n| {
        Backbone::Mlp(MlpConfig {
            hidden_sizes: (0..1 + n.below(3)).map(|_| [33, 48][n.below(2)] + n.below(2)).collect(),
            layer_norm: n.flag(),
            residual: n.flag(),
            activation: {
                use sconce_nn::spec::MlpActivation::{Gelu, Relu, Silu, Tanh};
                [Relu, Tanh, Silu, Gelu][n.below(4)]
            },
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| Backbone::Lstm(recurrent(n)),
    |n| Backbone::Gru(recurrent(n)),
    |n| Backbone::MinGru(stack(n)),
    |n| Backbone::MinLstm(stack(n)),
    |n| Backbone::ResLstm(stack(n)),
    |n| Backbone::TxLike(expand(n)),
    |n| Backbone::Hgrn(expand(n)),
    |n| Backbone::S4d(state(n)),
    |n| Backbone::S5(state(n)),
    |n| Backbone::Retnet(heads(n)),
    |n| Backbone::Rwkv(expand(n)),
    |n| Backbone::Xlstm(heads(n)),
    |n| {
        let num_heads = 1 + n.below(4);
        Backbone::Gla(GlaConfig {
            hidden_size: num_heads * (6 + n.below(13)),
            num_layers: 1 + n.below(3),
            num_heads,
            head_dim: 1 + n.below(20),
            expand_factor: 1 + n.below(3),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| Backbone::SlidingWindow(attention(n)),
    |n| {
        Backbone::Mamba(MambaConfig {
            hidden_size: 6 + n.below(65),
            num_layers: 1 + n.below(3),
            state_size: 1 + n.below(17),
            expand_factor: 1 + n.below(2),
            conv_size: 1 + n.below(4),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| {
        let (heads, head_dim, expand_factor) = (1 + n.below(4), 6 + n.below(15), 1 + n.below(2));
        Backbone::Mamba2(Mamba2Config {
            hidden_size: heads * head_dim,
            num_layers: 1 + n.below(3),
            state_size: 1 + n.below(40),
            expand_factor,
            conv_size: 1 + n.below(4),
            head_dim,
            chunk_size: 1 + n.below(40),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| Backbone::LstmHybrid(attention(n)),
    |n| Backbone::Jamba(jamba(n)),
    |n| {
        let num_heads = 1 + n.below(3);
        Backbone::Griffin(GriffinConfig {
            hidden_size: num_heads * (6 + 2 * n.below(10)),
            num_layers: 1 + n.below(4),
            expand_factor: 1 + n.below(3),
            conv_size: 1 + n.below(4),
            attention_every: 1 + n.below(3),
            num_heads,
            window_size: 1 + n.below(40),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| Backbone::Hawk(hawk(n)),
    |n| Backbone::Zamba(jamba(n)),
    |n| Backbone::GatedSsm(hawk(n)),
    |n| Backbone::CausalTransformer(attention(n)),
];

/// The forms of other programs that have a step.
pub const FORMS: &[fn(&mut Numbers) -> Backbone] = &[
    |n| {
        let AttentionConfig { hidden_size, num_layers, num_heads, .. } = attention(n);
        Backbone::ExphilLstmHybrid(ExphilHybridConfig {
            hidden_size,
            num_layers,
            num_heads,
            head_dim: 6 + 2 * n.below(35),
            window_size: 1 + n.below(40),
            initial_state: n.flag(),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| {
        Backbone::ExphilDeepResLstm(ExphilLstmConfig {
            hidden_size: 6 + n.below(65),
            num_layers: 1 + n.below(3),
            initial_state: n.flag(),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
    |n| {
        Backbone::ExphilMamba(ExphilMambaConfig {
            hidden_size: 6 + n.below(65),
            num_layers: 1 + n.below(3),
            state_size: 1 + n.below(20),
            expand_factor: 1 + n.below(2),
            conv_size: 1 + n.below(4),
            decays_input: n.flag(),
            input_norm: n.flag(),
            dropout: 0.1,
            input_dropout: 0.1,
        })
    },
];

/// Heads have an even width.
fn heads(n: &mut Numbers) -> HeadsConfig {
    let num_heads = 1 + n.below(4);
    HeadsConfig {
        hidden_size: 2 * num_heads * (3 + n.below(8)),
        num_layers: 1 + n.below(3),
        num_heads,
        expand_factor: 1 + n.below(3),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

fn state(n: &mut Numbers) -> StateConfig {
    StateConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        state_size: 1 + n.below(40),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

fn stack(n: &mut Numbers) -> StackConfig {
    StackConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

fn expand(n: &mut Numbers) -> ExpandConfig {
    ExpandConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        expand_factor: 1 + n.below(3),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

fn recurrent(n: &mut Numbers) -> RecurrentConfig {
    RecurrentConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        layer_norm: n.flag(),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
        norm_eps: NormEps([1e-5, 1e-6, 0.1][n.below(3)]),
        initial_state: n.flag(),
    }
}

/// A window may be shorter or longer than 30 frames.
fn attention(n: &mut Numbers) -> AttentionConfig {
    AttentionConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        num_heads: 1 + n.below(4),
        head_dim: 2 + 2 * n.below(35),
        window_size: 1 + n.below(40),
        qk_layernorm: n.flag(),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

/// Stacks may have fewer layers than it takes to reach an attention layer, or several times as many.
fn jamba(n: &mut Numbers) -> JambaConfig {
    JambaConfig {
        hidden_size: 6 + n.below(35),
        num_layers: 1 + n.below(5),
        state_size: 1 + n.below(17),
        expand_factor: 1 + n.below(2),
        conv_size: 1 + n.below(4),
        attention_every: 1 + n.below(3),
        num_heads: 1 + n.below(3),
        head_dim: 2 + 2 * n.below(20),
        window_size: 1 + n.below(40),
        qk_layernorm: n.flag(),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}

fn hawk(n: &mut Numbers) -> HawkConfig {
    HawkConfig {
        hidden_size: 6 + n.below(65),
        num_layers: 1 + n.below(3),
        expand_factor: 1 + n.below(3),
        conv_size: 1 + n.below(5),
        input_norm: n.flag(),
        dropout: 0.1,
        input_dropout: 0.1,
    }
}
