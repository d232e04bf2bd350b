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
      doc: "Frames in a window; each has its loss. Attention backbones see as many by default.",
      min: 1,
      max: 65_536
    ],
    stride: [
      value: usize,
      default: 30,
      doc:
        "Frames between the starts of neighbouring windows. With `unroll: :carry` windows do not overlap, and it has no effect.",
      min: 1,
      max: 1_000_000_000
    ],
    unroll: [
      value: Mode,
      default: :window,
      doc:
        "`:window`: windows from anywhere, each from a zero state. `:carry`: each row of the batch walks through whole games and carries its state from step to step.",
      type: {:in, [:window, :carry]}
    ],
    loss_on: [
      value: LossOn,
      default: :all,
      doc:
        "Frames of a window that have a loss: `:all` after `:burn_in`, or the `:last` one, as in ExPhil.",
      type: {:in, [:all, :last]},
      needs: [unroll: [:window]]
    ],
    burn_in: [
      value: usize,
      default: 0,
      doc:
        "Frames at the start of a window that carry no loss; with `unroll: :carry`, at the start of a game.",
      min: 0,
      max: 65_535,
      needs: [loss_on: [:all]]
    ],
    frame_delay: [
      value: usize,
      default: 0,
      doc:
        "Delay in frames: the state of frame t is paired with the action of frame t + 1 + `:frame_delay`.",
      min: 0,
      max: 10_000
    ],
    frame_delay_max: [
      optional: usize,
      default: nil,
      doc:
        "Each window draws its delay between `:frame_delay` and this; with `unroll: :carry`, each game does. `nil`: all have `:frame_delay`.",
      min: 0,
      max: 10_000
    ],
    sampling: [
      value: Sampling,
      default: :shuffled,
      doc:
        "How windows are drawn. `:shuffled`: each once an epoch. `:weighted`: games by `:weights`, with replacement. `:balanced`: own characters, or the values of `:balance`, equally often, with replacement. The others are shuffled, with some frames more often: `:transitions` changed actions, `:buttons` actions with a pressed button, `:column` frames with another value than 0 in `:oversample_column`.",
      type: {:in, [:shuffled, :weighted, :balanced, :transitions, :buttons, :column]}
    ],
    weights: [
      list: f64,
      default: nil,
      doc:
        "For `sampling: :weighted`: one weight for each game of `Sconce.Corpus.games/1`. Each window of the game has it.",
      type: {:or, [{:list, :float}, nil]},
      needs: [sampling: [:weighted]]
    ],
    balance: [
      optional: String,
      default: nil,
      doc:
        "For `sampling: :balanced`: the frame column whose values come equally often, read at the start of each game. `nil`: own characters.",
      type: {:or, [:string, :atom, nil]},
      needs: [sampling: [:balanced]]
    ],
    action_oversample: [
      value: f64,
      default: 3.0,
      doc:
        "For `sampling:` `:transitions`, `:buttons` and `:column`: factor by which these frames come more often than others.",
      min: 1,
      max: 1_000_000,
      needs: [sampling: [:transitions, :buttons, :column]]
    ],
    oversample_column: [
      optional: String,
      default: nil,
      doc:
        "For `sampling: :column`: a column of the corpus such as `:reward`, read with the action, or a column of the frame.",
      type: {:or, [:string, :atom, nil]},
      needs: [sampling: [:column]]
    ],
    mix: [
      list: Mix,
      default: nil,
      doc:
        "Other corpora to mix in, each `{folder, share}` or `{folder, first, last}`, see below. The remaining windows come from `:corpus`.",
      type:
        {:or,
         [
           {:list,
            {:or, [{:tuple, [:path, :float]}, {:tuple, [:path, :float, :float]}, :string, :map]}},
           nil
         ]},
      needs: [unroll: [:window]]
    ],
    mix_steps: [
      value: u64,
      default: 1000,
      doc: "For `:mix`: steps in which a share moves from its first value to its last.",
      min: 1,
      max: 1_000_000_000,
      needs: [mix: :given]
    ],
    characters: [
      list: u8,
      default: nil,
      doc: "Uses only views of these own characters, by name or internal id.",
      type: {:or, [{:list, {:or, [:non_neg_integer, :string]}}, nil]}
    ],
    players: [
      list: String,
      default: nil,
      doc: "Uses only views of players with these tags.",
      type: {:or, [{:list, :string}, nil]}
    ],
    stages: [
      list: u16,
      default: nil,
      doc: "Uses only games on these stages, by name or id.",
      type: {:or, [{:list, {:or, [:non_neg_integer, :string]}}, nil]}
    ],
    min_frames: [
      optional: usize,
      default: nil,
      doc: "Uses only games of at least this many frames.",
      min: 1,
      max: 1_000_000_000
    ],
    max_frames: [
      optional: usize,
      default: nil,
      doc: "Uses only games of at most this many frames.",
      min: 1,
      max: 1_000_000_000
    ],
    min_damage_dealt: [
      value: f32,
      default: 0.0,
      doc: "Uses only views of players who dealt at least this damage, in percent.",
      min: 0,
      max: 1_000_000
    ],
    min_damage_taken: [
      value: f32,
      default: 0.0,
      doc: "Uses only views of players who took at least this damage, in percent.",
      min: 0,
      max: 1_000_000
    ],
    humans: [
      value: bool,
      default: false,
      doc: "Uses only games in which all players are human."
    ],
    unique: [
      value: bool,
      default: false,
      doc: "Leaves out a game with the same values as another, such as the other player's recording."
    ],
    min_quality: [
      value: f32,
      default: 0.0,
      doc: "Uses only games of at least this quality, from 0 to 100, see `Sconce.Corpus`.",
      min: 0,
      max: 100
    ],
    dual_port: [
      value: bool,
      default: true,
      doc:
        "Uses the views of both players of a game. With `false` only that of the lowest port, among those that the other options keep."
    ],
    mirror: [
      value: f32,
      default: 0.0,
      doc:
        "Probability that a window is mirrored left to right; with `unroll: :carry`, that a game is.",
      min: 0,
      max: 1
    ],
    noise: [
      value: f32,
      default: 0.0,
      doc: "Probability that noise is added to the numbers of a window. Ids get none.",
      min: 0,
      max: 1
    ],
    noise_scale: [
      value: f32,
      default: 0.01,
      doc: "Standard deviation of the noise. Features are about 1.",
      min: 0,
      max: 1_000_000,
      needs: [noise: :above_zero]
    ],
    previous_dropout: [
      value: f32,
      default: 0.0,
      doc: "Probability that the previous action of a frame is masked.",
      min: 0,
      max: 1
    ],
    neutral_weight: [
      value: f32,
      default: 1.0,
      doc: "Loss weight of a frame without a button and with a centred main stick.",
      min: 0,
      max: 1_000_000
    ],
    transition_weight: [
      value: f32,
      default: 1.0,
      doc: "Factor on the loss weight of a frame whose action differs from the one before.",
      min: 0,
      max: 1_000_000
    ],
    val_split: [
      value: f64,
      default: 0.1,
      doc:
        "Share of the games that is held out for validation. The split comes first; `:characters` and the other filters then select views on each side.",
      min: 0,
      max: 1
    ],
    validation: [
      optional: PathBuf,
      default: nil,
      doc: "A separate corpus for validation. No game of `:corpus` is then held out.",
      type: :any,
      resume: :free
    ],
    prefetch: [
      value: usize,
      default: 2,
      doc:
        "Batches that are prepared ahead. With 0 each batch is made on request, and the loader's threads, deadline and byte limit have no effect.",
      min: 0,
      max: 4096,
      resume: :free
    ],
    loader_threads: [
      value: usize,
      default: 1,
      doc: "Threads that prepare batches. The batches are the same for any number of threads.",
      min: 1,
      max: 4096,
      resume: :free
    ],
    loader_deadline_ms: [
      value: u64,
      default: 60000,
      doc: "Deadline for a batch in milliseconds. A batch that takes longer is an error.",
      min: 1,
      max: 4_294_967_295,
      resume: :free
    ]
  ],
  objective: [
    teacher: [
      optional: Teachers,
      default: nil,
      doc:
        "File of a frozen policy to learn from or to stay close to, or a list of several, whose probabilities are averaged, see below.",
      type: {:or, [:path, {:list, :path}, nil]},
      resume: :free
    ],
    teacher_weight: [
      value: f64,
      default: 0.1,
      doc: "Factor on the divergence from the teacher, which is added to the loss.",
      min: 0,
      max: 1_000_000,
      needs: [teacher: :given]
    ],
    teacher_direction: [
      value: Direction,
      default: :forward,
      doc: "`:forward` is KL(policy || teacher), `:reverse` is KL(teacher || policy).",
      type: {:in, [:forward, :reverse]},
      needs: [teacher: :given]
    ],
    teacher_temperature: [
      value: f64,
      default: 1.0,
      doc:
        "Temperature T of the divergence: logits of policy and teachers are divided by T, and the divergence is multiplied by T^2.",
      min: 0.01,
      max: 1000,
      needs: [teacher: :given]
    ],
    prior_weight: [
      value: f64,
      default: 0.0,
      doc:
        "Factor on the divergence from P(a_t given a_{t-1}), which is added to the loss, see below.",
      min: 0,
      max: 1_000_000
    ],
    scheduled_sampling: [
      value: f32,
      default: 0.0,
      doc: "Probability that an input is replaced by one that the policy samples, see below.",
      min: 0,
      max: 1
    ],
    scheduled_sampling_steps: [
      value: u64,
      default: 0,
      doc: "Steps in which that probability rises linearly from 0.",
      min: 0,
      max: 1_000_000_000,
      needs: [scheduled_sampling: :above_zero]
    ],
    scheduled_sampling_slots: [
      optional: usize,
      default: nil,
      doc:
        "How many of the inputs that a frame reads may be replaced, newest first; `nil` is all.",
      min: 1,
      max: 256,
      needs: [scheduled_sampling: :above_zero]
    ],
    advantage_temperature: [
      optional: f64,
      default: nil,
      doc:
        "Weights the imitation loss of each frame by `exp(advantage / temperature)`, see below. The corpus needs rewards, and the heads a value.",
      min: 0.000001,
      max: 1_000_000
    ],
    advantage_max_weight: [
      value: f64,
      default: 20.0,
      doc: "Largest weight that its advantage gives a frame.",
      min: 0.000001,
      max: 1_000_000,
      needs: [advantage_temperature: :given]
    ],
    discount: [
      value: f64,
      default: 0.99,
      doc: "Discount factor of a reward for each frame that it lies ahead.",
      min: 0,
      max: 1,
      needs: [advantage_temperature: :given]
    ],
    value_weight: [
      value: f64,
      default: 0.5,
      doc: "Factor on the value loss, which is half the squared error of the return.",
      min: 0,
      max: 1_000_000,
      needs: [advantage_temperature: :given]
    ],
    policy: [
      optional: PathBuf,
      default: nil,
      doc: "File of a policy whose weights the run starts with, see below."
    ],
    fit_prior: [
      value: bool,
      default: true,
      doc: "Initialises the prior of heads with `prior: true` to log P(a_t given a_{t-1})."
    ]
  ],
  optimiser: [
    optimizer: [
      value: Optimiser,
      default: :adamw,
      doc: "Update rule of the weights, see below.",
      type: {:in, [:adamw, :adam, :sgd, :rmsprop, :radam, :lamb, :adabelief, :yogi, :lion]}
    ],
    weight_decay: [
      optional: f64,
      default: nil,
      doc:
        "Weight decay of matrices; biases and norms have none. `nil` is the optimizer's default.",
      min: 0,
      max: 1000
    ],
    beta1: [
      optional: f64,
      default: nil,
      doc: "Decay rate of the mean of gradients; `nil` is the optimizer's default.",
      min: 0,
      below: 1
    ],
    beta2: [
      optional: f64,
      default: nil,
      doc: "Decay rate of the mean of squared gradients; `nil` is the optimizer's default.",
      min: 0,
      below: 1
    ],
    eps: [
      optional: f64,
      default: nil,
      doc: "Added to the denominator of an update; `nil` is the optimizer's default.",
      min: 1.0e-30,
      max: 1
    ],
    momentum: [
      optional: f64,
      default: nil,
      doc: "Momentum of `:sgd`; `nil` is its default.",
      min: 0,
      below: 1
    ],
    nesterov: [
      value: bool,
      default: false,
      doc: "Uses Nesterov momentum, which looks one step ahead."
    ],
    max_grad_norm: [
      value: f64,
      default: 1.0,
      doc:
        "Largest norm of the gradient of all weights together. A longer gradient is scaled down to it.",
      above: 0
    ],
    freeze: [
      list: String,
      default: nil,
      doc: "Parts of the policy whose weights never change, see below.",
      type: {:or, [{:list, {:or, [:string, :atom]}}, nil]}
    ],
    quantise: [
      optional: Format,
      default: nil,
      doc: "Trains matrices for integers of 8 or 4 bits: the weights that forward passes read are on a grid, see below. `nil`: f32.",
      type: {:or, [{:in, [:int8, :int4]}, nil]}
    ],
    quantise_group: [
      optional: usize,
      default: nil,
      doc: "Columns of a row that share a scale with `:int4`; `nil` is 32.",
      min: 1,
      max: 65_536,
      needs: [quantise: [:int4]]
    ],
    quantise_steps: [
      value: Steps,
      default: :largest,
      doc: "Steps of the grids: the largest magnitude of a row or group over its largest code, or `:learned` ones (LSQ).",
      type: {:in, [:largest, :learned]},
      needs: [quantise: :given]
    ],
    quantise_activations: [
      value: bool,
      default: false,
      doc: "Rounds the inputs of quantised matrices as sessions round them: to 16 bits before `:int8`, to 8 bits in blocks of 32 before `:int4`.",
      needs: [quantise: :given]
    ],
    quantise_after: [
      value: f64,
      default: 0.2,
      doc: "Share of the run before the weights begin to move to their grid.",
      min: 0,
      max: 1,
      needs: [quantise: :given]
    ],
    quantise_ramp: [
      value: f64,
      default: 0.3,
      doc: "Share of the run in which the weights move to their grid linearly.",
      min: 0,
      max: 1,
      needs: [quantise: :given]
    ],
    prune: [
      optional: Pattern,
      default: nil,
      doc:
        "Trains matrices in which weights are 0: two of each four inputs of an output (`:two_four`), or `:prune_sparsity` of the weights of an output (`:unstructured`). Excludes `:quantise`. `nil`: all weights stay.",
      type: {:or, [{:in, [:two_four, :unstructured]}, nil]}
    ],
    prune_sparsity: [
      value: f64,
      default: 0.8,
      doc: "Part of the weights of an output that are 0 at the end, with `prune: :unstructured`.",
      min: 0,
      below: 1,
      needs: [prune: [:unstructured]]
    ],
    prune_after: [
      value: f64,
      default: 0.2,
      doc: "Share of the run before the first weights are removed.",
      min: 0,
      max: 1,
      needs: [prune: :given]
    ],
    prune_ramp: [
      value: f64,
      default: 0.5,
      doc: "Share of the run in which they are removed: fast at first, then slower (Zhu and Gupta 2017).",
      min: 0,
      max: 1,
      needs: [prune: :given]
    ],
    ema_decay: [
      optional: f64,
      default: nil,
      doc:
        "Decay rate of an average of the weights over the steps. Validations and the best checkpoint use the average, see below. `nil` keeps none.",
      min: 0,
      below: 1
    ],
    accumulation_steps: [
      value: u64,
      default: 1,
      doc: "Batches whose mean gradient makes one step. A step takes the memory of one batch.",
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
      doc:
        "Minutes after which the run ends. The schedule follows the clock where the clock is ahead of the steps.",
      min: 0.001,
      max: 1_000_000,
      resume: :free
    ],
    learning_rate: [
      value: f64,
      default: 0.001,
      doc: "Learning rate at the end of the warm-up.",
      min: 0,
      max: 1000
    ],
    lr_schedule: [
      value: LrSchedule,
      default: :cosine,
      doc: "Decay of the learning rate after the warm-up, see below.",
      type: {:in, [:constant, :linear, :cosine, :cosine_restarts, :exponential]}
    ],
    warmup_steps: [
      value: u64,
      default: 100,
      doc: "Steps in which the learning rate rises linearly from 0; at most half of the run.",
      min: 0,
      max: 1_000_000_000
    ],
    decay_steps: [
      optional: u64,
      default: nil,
      doc:
        "Steps of the decay. `nil`: all steps after the warm-up. A resumed run keeps the number that it began with.",
      min: 1,
      max: 1_000_000_000,
      needs: [lr_schedule: [:linear, :cosine, :exponential]],
      resume: :free
    ],
    decay_rate: [
      value: f64,
      default: 0.95,
      doc: "Share of the learning rate that `:exponential` leaves after `:decay_steps`.",
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
      doc: "Factor by which each period of `:cosine_restarts` is longer than the one before.",
      min: 1,
      max: 1000,
      needs: [lr_schedule: [:cosine_restarts]]
    ],
    patience: [
      optional: u64,
      default: nil,
      doc:
        "Validations in a row without a better one before the run ends early; `nil` is no limit.",
      min: 1,
      max: 1_000_000_000,
      resume: :free
    ],
    min_delta: [
      value: f64,
      default: 0.0,
      doc: "Least improvement in nats that makes a validation better.",
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
      doc:
        "`:window` scores the policy on the last window; `:carry` carries its memory through the game.",
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
      doc:
        "Minutes between saves of the state, beside or instead of `:save_every`; `nil` is none.",
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
        "Steps between reports on the gradient of each weight, see `gradients/1`; `nil` is none.",
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
      doc: "Milliseconds that a run waits for the result of `:callback`.",
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
      doc: "Seed of all random numbers.",
      min: 0
    ],
    threads: [
      optional: usize,
      default: nil,
      doc:
        "Threads of the native side; `nil` is the number in `Sconce.Config`, or no change if none is set there.",
      min: 1,
      max: 4096,
      resume: :free
    ],
    device: [
      value: String,
      default: "cpu",
      doc: "Device that the run computes on.",
      type: :string,
      resume: :free
    ],
    memory_limit: [
      optional: u64,
      default: nil,
      doc:
        "Bytes that the run may take, as in `\"8GB\"`, see below. `nil` cuts no batch, and refuses a run that needs more memory than is available.",
      type: {:or, [nil, :bytes]},
      resume: :free
    ],
    grow_micro_batch: [
      value: bool,
      default: false,
      doc:
        "Lets a micro-batch that was halved for want of memory grow again, see `Sconce.Pressure`. Rounding then depends on when memory was short."
    ],
    precision: [
      value: Precision,
      default: :f32,
      doc:
        "Format that operands of products are rounded to, see below; all else is f32. A format that is not faster on this machine is replaced by f32: on a CPU, all but `:bf16` on a matrix unit.",
      type: {:in, [:f32, :bf16, :f16]},
      resume: :free
    ],
    force_precision: [
      value: bool,
      default: false,
      doc: "Computes in `:precision` even where that is slower than f32.",
      needs: [precision: [:bf16, :f16]],
      resume: :free
    ],
    gradient_checkpoint: [
      value: bool,
      default: false,
      doc:
        "On a CPU: keeps only the input of each block and computes the block again in the backward pass. This takes less memory and more time.",
      resume: :free
    ],
    checkpoint_every: [
      value: usize,
      default: 1,
      doc: "Blocks that `:gradient_checkpoint` computes again together.",
      min: 1,
      max: 1024,
      resume: :free
    ],
    resume: [
      value: bool,
      default: false,
      doc:
        "Resumes the run in `:out`. Options that are not given are the recorded ones, see below.",
      resume: :free
    ]
  ],
  loss: [
    button_weight: [
      value: f32,
      default: 2.0,
      doc: "Factor on the loss of bit heads.",
      min: 0
    ],
    bernoulli_reduction: [
      value: Reduction,
      default: :mean,
      doc: "Reduction of the loss over the bits of a head.",
      type: {:in, [:mean, :sum]}
    ],
    pos_weight: [
      value: PosWeight,
      default: :auto,
      doc: "Factor on the loss of pressed bits. `:auto` derives it from how rare presses are.",
      type: {:or, [:auto, nil, {:list, :float}]}
    ],
    label_smoothing: [
      value: f32,
      default: 0.1,
      doc: "Label smoothing of classes; bits have none.",
      min: 0,
      max: 1
    ],
    focal_gamma: [
      optional: f32,
      default: 3.0,
      doc: "Exponent of the focal factor; `nil` is no focal factor.",
      min: 0,
      max: 100
    ],
    focal_heads: [
      value: FocalHeads,
      default: :all,
      doc: "Heads that have the focal factor.",
      type: {:in, [:all, :bernoulli]}
    ],
    stick_edge_weight: [
      optional: f32,
      default: 2.0,
      doc: "Loss weight of the main stick at its edge; 1 at its centre. `nil` is 1 everywhere.",
      min: 0
    ],
    entropy_weight: [
      value: f32,
      default: 0.01,
      doc: "Factor on the entropy, which is subtracted from the loss.",
      min: 0
    ],
    head_normalize: [
      value: bool,
      default: false,
      doc: "Divides the loss of each head by its mean."
    ],
    clamp: [
      value: f32,
      default: 60.0,
      doc: "Logits are clamped to this on both sides.",
      min: 0.001,
      max: 70
    ]
  ]
);
