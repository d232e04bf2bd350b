options!(
  data: [
    batch_size: [
      value: usize,
      default: 64,
      doc: "Windows in a batch.",
      min: 1,
      max: 65_536
    ],
    window_size: [
      value: usize,
      default: 60,
      doc: "Frames in a window; each has its loss. Attention sees as many.",
      min: 1,
      max: 65_536
    ],
    stride: [
      value: usize,
      default: 30,
      doc: "Frames between the starts of neighbouring windows; carried, they follow each other.",
      min: 1,
      max: 1_000_000_000
    ],
    unroll: [
      value: Mode,
      default: :window,
      doc:
        "Windows from anywhere, each from a zero state; or each row of the batch walks through whole games, its state handed on from step to step.",
      type: {:in, [:window, :carry]}
    ],
    burn_in: [
      value: usize,
      default: 0,
      doc: "Frames at the start of a window that carry no loss; carried, at the start of a game.",
      min: 0,
      max: 65_535
    ],
    frame_delay: [
      value: usize,
      default: 0,
      doc: "Frames between a state and the action to learn, beyond the next.",
      min: 0,
      max: 10_000
    ],
    frame_delay_max: [
      optional: usize,
      default: nil,
      doc: "Each window has a delay from `:frame_delay` to this one; carried, each game.",
      min: 0,
      max: 10_000
    ],
    sampling: [
      value: Sampling,
      default: :shuffled,
      doc:
        "Each window once an epoch; or drawn again and again: games by `:weights`, own characters, or the values of `:balance`, equally often; or shuffled, with windows around a changed action more often.",
      type: {:in, [:shuffled, :weighted, :balanced, :transitions]}
    ],
    weights: [
      list: f64,
      default: nil,
      doc: "Of `:weighted`: one for each of `Sconce.Corpus.games/1`, for each of its windows.",
      type: {:or, [{:list, :float}, nil]},
      needs: [sampling: [:weighted]]
    ],
    balance: [
      optional: String,
      default: nil,
      doc:
        "Of `:balanced`: the column of a frame whose values come equally often, as they are when a game begins.",
      type: {:or, [:string, :atom, nil]},
      needs: [sampling: [:balanced]]
    ],
    action_oversample: [
      value: f64,
      default: 3.0,
      doc: "Of `:transitions`: how many times as often as others a changed action comes.",
      min: 1,
      max: 1_000_000,
      needs: [sampling: [:transitions]]
    ],
    mix: [
      list: Mix,
      default: nil,
      doc:
        "Other corpora whose windows are mixed in, `{folder, share}` or `{folder, first, last}` each, see below; the rest is the corpus' own.",
      type:
        {:or,
         [{:list, {:or, [{:tuple, [:path, :float]}, {:tuple, [:path, :float, :float]}, :string, :map]}}, nil]},
      needs: [unroll: [:window]]
    ],
    mix_steps: [
      value: u64,
      default: 1000,
      doc: "Of `:mix`: steps in which a first share becomes the last.",
      min: 1,
      max: 1_000_000_000,
      needs: [mix: :given]
    ],
    characters: [
      list: u8,
      default: nil,
      doc: "Only views of these own characters, by name or internal id.",
      type: {:or, [{:list, {:or, [:non_neg_integer, :string]}}, nil]}
    ],
    players: [
      list: String,
      default: nil,
      doc: "Only views of players with these tags.",
      type: {:or, [{:list, :string}, nil]}
    ],
    mirror: [
      value: f32,
      default: 0.0,
      doc: "Probability of a left-right mirrored window; carried, of a mirrored game.",
      min: 0,
      max: 1
    ],
    noise: [
      value: f32,
      default: 0.0,
      doc: "Probability of a window to whose numbers (not ids) noise is added.",
      min: 0,
      max: 1
    ],
    noise_scale: [
      value: f32,
      default: 0.01,
      doc: "Standard deviation of the noise, beside features of about 1.",
      min: 0,
      max: 1_000_000,
      needs: [noise: :above_zero]
    ],
    previous_dropout: [
      value: f32,
      default: 0.0,
      doc: "Probability of a frame whose previous action is forgotten.",
      min: 0,
      max: 1
    ],
    neutral_weight: [
      value: f32,
      default: 1.0,
      doc: "Weight of a frame without a button and with a centred main stick.",
      min: 0,
      max: 1_000_000
    ],
    transition_weight: [
      value: f32,
      default: 1.0,
      doc: "Factor on a frame whose action differs from the one before.",
      min: 0,
      max: 1_000_000
    ],
    val_split: [
      value: f64,
      default: 0.1,
      doc:
        "Share of the games that is measured on and never trained on. Games are dealt out before `:characters` and `:players` choose among the views of each side.",
      min: 0,
      max: 1
    ],
    validation: [
      optional: PathBuf,
      default: nil,
      doc: "A corpus of its own to measure on; then no game of the other is held back.",
      type: :any,
      resume: :free
    ],
    prefetch: [
      value: usize,
      default: 2,
      doc:
        "Batches that are ready or in the making. With 0 each is made when it is asked for, and what is said of threads, deadline and bytes means nothing.",
      min: 0,
      max: 4096,
      resume: :free
    ],
    loader_threads: [
      value: usize,
      default: 1,
      doc: "Threads that make them. The batches are the same for any number.",
      min: 1,
      max: 4096,
      resume: :free
    ],
    loader_deadline_ms: [
      value: u64,
      default: 60000,
      doc: "A batch that takes longer is an error.",
      min: 1,
      max: 4_294_967_295,
      resume: :free
    ]
  ],
  objective: [
    teacher: [
      optional: PathBuf,
      default: nil,
      doc: "File of a frozen policy to stay close to, see below.",
      resume: :free
    ],
    teacher_weight: [
      value: f64,
      default: 0.1,
      doc: "How much of the divergence from it is added to the loss.",
      min: 0,
      max: 1_000_000,
      needs: [teacher: :given]
    ],
    teacher_direction: [
      value: Direction,
      default: :forward,
      doc: "KL(policy || teacher), or the other way round.",
      type: {:in, [:forward, :reverse]},
      needs: [teacher: :given]
    ],
    prior_weight: [
      value: f64,
      default: 0.0,
      doc: "How much of the divergence from P(a_t given a_{t-1}) is added to the loss, see below.",
      min: 0,
      max: 1_000_000
    ],
    scheduled_sampling: [
      value: f32,
      default: 0.0,
      doc: "Probability of an input that is read as the policy would have given it, see below.",
      min: 0,
      max: 1
    ],
    scheduled_sampling_steps: [
      value: u64,
      default: 0,
      doc: "Steps in which that rises evenly from 0.",
      min: 0,
      max: 1_000_000_000,
      needs: [scheduled_sampling: :above_zero]
    ],
    scheduled_sampling_slots: [
      optional: usize,
      default: nil,
      doc: "Of the inputs that a frame reads how many it concerns, newest first; `nil` is all.",
      min: 1,
      max: 256,
      needs: [scheduled_sampling: :above_zero]
    ],
    advantage_temperature: [
      optional: f64,
      default: nil,
      doc:
        "Weighs what is imitated by `exp(advantage / temperature)`, for corpora with rewards and heads with a value, see below.",
      min: 0.000001,
      max: 1_000_000
    ],
    advantage_max_weight: [
      value: f64,
      default: 20.0,
      doc: "The largest that such a weight may be.",
      min: 0.000001,
      max: 1_000_000,
      needs: [advantage_temperature: :given]
    ],
    discount: [
      value: f64,
      default: 0.99,
      doc: "How much less a reward of the next frame counts than one of this frame.",
      min: 0,
      max: 1,
      needs: [advantage_temperature: :given]
    ],
    value_weight: [
      value: f64,
      default: 0.5,
      doc: "Factor on the loss of the value, half the squared error of the return.",
      min: 0,
      max: 1_000_000,
      needs: [advantage_temperature: :given]
    ],
    policy: [
      optional: PathBuf,
      default: nil,
      doc: "File of a policy whose weights the run begins with, see below."
    ],
    fit_prior: [
      value: bool,
      default: true,
      doc: "Starts a `prior: true` of the heads at log P(a_t given a_{t-1})."
    ]
  ],
  optimiser: [
    optimizer: [
      value: Optimiser,
      default: :adamw,
      doc: "What moves the weights.",
      type: {:in, [:adamw, :adam, :sgd, :rmsprop, :radam, :lamb, :adabelief, :yogi, :lion]}
    ],
    weight_decay: [
      optional: f64,
      default: nil,
      doc: "Of matrices, never of biases and norms; `nil` is the optimizer's own.",
      min: 0,
      max: 1000
    ],
    beta1: [
      optional: f64,
      default: nil,
      doc: "What the mean of gradients keeps of itself; `nil` is the optimizer's own.",
      min: 0,
      below: 1
    ],
    beta2: [
      optional: f64,
      default: nil,
      doc: "What the mean of squares keeps of itself; `nil` is the optimizer's own.",
      min: 0,
      below: 1
    ],
    eps: [
      optional: f64,
      default: nil,
      doc: "Added to what an update is divided by; `nil` is the optimizer's own.",
      min: 1.0e-30,
      max: 1
    ],
    momentum: [
      optional: f64,
      default: nil,
      doc: "Of `:sgd`; `nil` is its own.",
      min: 0,
      below: 1
    ],
    nesterov: [
      value: bool,
      default: false,
      doc: "Looks a step of `:momentum` ahead."
    ],
    max_grad_norm: [
      value: f64,
      default: 1.0,
      doc: "A gradient of all weights that is longer is cut to this length.",
      above: 0
    ],
    freeze: [
      list: String,
      default: nil,
      doc: "Parts of the policy that stay what they are, see below.",
      type: {:or, [{:list, {:or, [:string, :atom]}}, nil]}
    ],
    ema_decay: [
      optional: f64,
      default: nil,
      doc:
        "Keeps an average of the weights over the steps, by which the policy is validated and saved as the best, see below.",
      min: 0,
      below: 1
    ],
    accumulation_steps: [
      value: u64,
      default: 1,
      doc: "Batches whose mean gradient makes one step, in the memory of one.",
      min: 1,
      max: 65_536
    ],
    truncate_bptt: [
      optional: usize,
      default: nil,
      doc:
        "The most frames that a gradient goes back through. A longer window is cut into chunks of this length, and takes the memory of one chunk. `nil`: the whole window is one chunk.",
      min: 1,
      max: 65_536
    ]
  ],
  schedule: [
    epochs: [
      value: u64,
      default: 10,
      doc: "Passes over all windows.",
      min: 1,
      max: 1_000_000,
      resume: :free
    ],
    steps: [
      optional: u64,
      default: nil,
      doc: "Updates of the weights, instead of `:epochs`.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    max_minutes: [
      optional: f64,
      default: nil,
      doc: "Ends the run; the schedule then follows the clock where that is ahead of the steps.",
      min: 0.001,
      max: 1_000_000,
      resume: :free
    ],
    learning_rate: [
      value: f64,
      default: 0.001,
      doc: "At the end of the warm-up.",
      min: 0,
      max: 1000
    ],
    lr_schedule: [
      value: LrSchedule,
      default: :cosine,
      doc: "How it falls after the warm-up, see below.",
      type: {:in, [:constant, :linear, :cosine, :cosine_restarts, :exponential]}
    ],
    warmup_steps: [
      value: u64,
      default: 100,
      doc: "Steps in which it rises; never more than half of the run.",
      min: 0,
      max: 1_000_000_000
    ],
    decay_steps: [
      optional: u64,
      default: nil,
      doc:
        "Steps in which it falls; `nil` is all that are left of the run, of one that goes on those that were left when it began.",
      min: 1,
      max: 1_000_000_000,
      needs: [lr_schedule: [:linear, :cosine, :exponential]],
      resume: :free
    ],
    decay_rate: [
      value: f64,
      default: 0.95,
      doc: "What `:exponential` leaves of it after `:decay_steps`.",
      min: 0,
      max: 1,
      needs: [lr_schedule: [:exponential]]
    ],
    restart_period: [
      value: u64,
      default: 1000,
      doc: "Steps before the first restart of `:cosine_restarts`.",
      min: 1,
      max: 1_000_000_000,
      needs: [lr_schedule: [:cosine_restarts]]
    ],
    restart_mult: [
      value: u64,
      default: 2,
      doc: "How many times as long as the one before each further period is.",
      min: 1,
      max: 1000,
      needs: [lr_schedule: [:cosine_restarts]]
    ],
    patience: [
      optional: u64,
      default: nil,
      doc: "Validations without a better one before the run ends early.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    min_delta: [
      value: f64,
      default: 0.0,
      doc: "How much better is better, in nats.",
      min: 0,
      max: 1_000_000,
      resume: :free
    ]
  ],
  saving: [
    validate_every: [
      optional: u64,
      default: nil,
      doc: "Steps between validations; `nil` is an epoch.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    validation_mode: [
      value: Mode,
      default: :window,
      doc: "The policy on the last window, or its memory carried through the game.",
      type: {:in, [:window, :carry]}
    ],
    validation_stride: [
      value: usize,
      default: 10,
      doc: "Validations score every n-th frame; the final evaluation scores all.",
      min: 1,
      max: 1_000_000_000
    ],
    save_every: [
      optional: u64,
      default: nil,
      doc: "Steps between saves of the state, beside those of validations.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    save_minutes: [
      optional: f64,
      default: 5.0,
      doc: "Minutes between them, beside or instead of `:save_every`; `nil` is none.",
      min: 0,
      max: 1_000_000,
      resume: :free
    ],
    keep_last: [
      value: usize,
      default: 0,
      doc: "How many of the latest states stay under numbered names, see below.",
      min: 0,
      max: 1_000_000,
      resume: :free
    ],
    keep_best: [
      value: usize,
      default: 0,
      doc: "How many policies of the best validations stay under numbered names.",
      min: 0,
      max: 1_000_000,
      resume: :free
    ],
    gradient_report: [
      optional: u64,
      default: nil,
      doc:
        "Steps between looks at the gradient of each weight, see `gradients/1`; `nil` never looks.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    callback_every: [
      value: u64,
      default: 100,
      doc: "Steps between calls of `:callback`.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    callback_ms: [
      value: u64,
      default: 5000,
      doc: "How long a run waits for what `:callback` says.",
      min: 1,
      max: 3_600_000,
      resume: :free
    ],
    evaluate: [
      value: bool,
      default: true,
      doc: "Scores the best policy at the end.",
      resume: :free
    ]
  ],
  machine: [
    seed: [
      value: u64,
      default: 0,
      doc: "Of everything random.",
      min: 0
    ],
    threads: [
      optional: usize,
      default: nil,
      doc: "Of the native side; `nil` is that of `Sconce.Config`, or leaves them as they are.",
      min: 1,
      max: 4096,
      resume: :free
    ],
    device: [
      value: String,
      default: "cpu",
      doc: "What it runs on.",
      type: :string,
      resume: :free
    ],
    memory_limit: [
      optional: u64,
      default: nil,
      doc:
        "Bytes that the run may take, as in `\"8GB\"`, see below. `nil` cuts no batch: a run for which less is available than it needs is refused.",
      type: {:or, [nil, :bytes]},
      resume: :free
    ],
    precision: [
      value: Precision,
      default: :f32,
      doc:
        "What operands of products are rounded to, see below; all else is f32. What gains nothing on this machine gives way to f32: on a CPU all but `:bf16` on a matrix unit.",
      type: {:in, [:f32, :bf16, :f16]},
      resume: :free
    ],
    force_precision: [
      value: bool,
      default: false,
      doc: "Computes in `:precision` also where that is slower than f32.",
      needs: [precision: [:bf16, :f16]],
      resume: :free
    ],
    gradient_checkpoint: [
      value: bool,
      default: false,
      doc:
        "On a CPU: keeps of each block only what it read and runs it again, for less memory and more time.",
      resume: :free
    ],
    checkpoint_every: [
      value: usize,
      default: 1,
      doc: "Blocks that `:gradient_checkpoint` runs again together.",
      min: 1,
      max: 1024,
      resume: :free
    ],
    resume: [
      value: bool,
      default: false,
      doc: "Goes on with the run in `:out`, whose options are its own, see below.",
      resume: :free
    ]
  ],
  loss: [
    button_weight: [
      value: f32,
      default: 2.0,
      doc: "Factor on heads of bits.",
      min: 0
    ],
    bernoulli_reduction: [
      value: Reduction,
      default: :mean,
      doc: "Over the bits of a head.",
      type: {:in, [:mean, :sum]}
    ],
    pos_weight: [
      value: PosWeight,
      default: :auto,
      doc: "Factor on pressed bits; `:auto` takes it from how rare they are.",
      type: {:or, [:auto, nil, {:list, :float}]}
    ],
    label_smoothing: [
      value: f32,
      default: 0.1,
      doc: "Of classes, never bits.",
      min: 0,
      max: 1
    ],
    focal_gamma: [
      optional: f32,
      default: 3.0,
      doc: "Exponent of the focal factor.",
      min: 0,
      max: 100
    ],
    focal_heads: [
      value: FocalHeads,
      default: :all,
      doc: "Heads that have it.",
      type: {:in, [:all, :bernoulli]}
    ],
    stick_edge_weight: [
      optional: f32,
      default: 2.0,
      doc: "Weight of the main stick at its edge; 1 at its centre.",
      min: 0
    ],
    entropy_weight: [
      value: f32,
      default: 0.01,
      doc: "Of the entropy, which is subtracted.",
      min: 0
    ],
    head_normalize: [
      value: bool,
      default: false,
      doc: "Divides each head by its mean loss."
    ],
    clamp: [
      value: f32,
      default: 60.0,
      doc: "Logits are cut to this on both sides.",
      min: 0.001,
      max: 70
    ]
  ]
);
