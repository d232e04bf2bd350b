defmodule Sconce.Session do
  alias Sconce.{Action, Device, Embedding, Error, Native, Options, Policy, Projection}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Session.Remote

  @int8_bound 0.02

  @seed [type: {:or, [:non_neg_integer, nil]}, max: 2 ** 64 - 1]
  @probability [type: :float, min: 0.0, max: 1.0]

  @sampling [
    temperature: [
      type: :float,
      min: 1.0e-3,
      max: 1.0e3,
      default: 1.0,
      doc: "Divides the logits: below 1 the choice comes nearer to the most likely one."
    ],
    deterministic: [
      type: :boolean,
      default: false,
      doc: "The most likely choice of every head."
    ],
    deterministic_buttons: [
      type: :boolean,
      default: false,
      doc: "The most likely bits, sampled classes."
    ],
    press_threshold:
      @probability ++
        [default: 0.5, doc: "A deterministic bit is pressed above this probability."],
    release_threshold:
      @probability ++
        [default: 0.5, doc: "One that was held is released at or below this probability."]
  ]

  @open [
          mode: [
            type: {:or, [:carry, :window, {:tuple, [{:in, [:resync]}, :pos_integer]}]},
            default: :carry,
            doc: "What a decision remembers, see below."
          ],
          window_size: [
            type: :pos_integer,
            max: 16_384,
            default: 60,
            doc: "Frames of a window, also of the one that warms a cold state."
          ],
          seed: @seed ++ [default: nil, doc: "Of all choices; `nil` draws one."],
          lane: [
            type: {:in, [:auto, :inline, :worker]},
            default: :auto,
            doc:
              "Where a decision runs: on the caller's scheduler, on a native thread, or as measured. `:inline` is " <>
                "refused as `:out_of_range` where a decision takes 1 ms or more, which all other processes of the " <>
                "scheduler would wait for."
          ],
          frame_delay: [
            type: {:or, [:non_neg_integer, nil]},
            max: 10_000,
            default: nil,
            doc:
              "How many frames later than the next one a choice shows; `nil` is that of the training, " <>
                "as the checkpoint has it, or 0. A policy that reads a delay id and learned several " <>
                "wants it said."
          ],
          weights: [
            type: {:or, [{:in, [:f32, :bf16, :int8]}, {:tuple, [{:in, [:int8]}, :float]}]},
            default: :f32,
            doc:
              "How the matrices of a packed policy are kept: as they are, rounded to bf16, which are read in " <>
                "half the time, or to int8, in a quarter of it; with `{:int8, bound}` those within a bound."
          ],
          rollback: [
            type: :non_neg_integer,
            max: 60,
            default: 0,
            doc:
              "How many decisions `rollback/2` can take back, and `:game_frame` answer again; each takes " <>
                "the bytes of one more state, and in a window of one more frame."
          ],
          snapshot: [
            type: {:or, [:string, nil]},
            default: nil,
            doc: "Goes on from there, as after `restore/2`."
          ],
          logits: [type: :boolean, default: false, doc: "Whether actions come with their logits."],
          project_out: [
            type: :any,
            default: nil,
            doc: "Directions that the heads do not see, as in `Sconce.Policy.forward/3`."
          ]
        ] ++ Device.option("the policy's") ++ @sampling

  @act [
         seed: @seed ++ [doc: "For this decision, instead of the session's."],
         previous: [
           type: :any,
           doc:
             "The action that led to this frame: a `Sconce.Action` or its `choices`; `nil` as if " <>
               "not given."
         ],
         queue: [
           type: {:list, :any},
           doc:
             "The inputs that were given last, newest first, each as `previous`; `nil` for one that " <>
               "the session shall know itself."
         ],
         choices: [
           type: :any,
           doc:
             "An action to score, as `previous` or as a list of labels: nothing is drawn, it " <>
               "becomes the decision, and logits are those of its parts."
         ],
         game_frame: [
           type: {:or, [:integer, nil]},
           min: -0x8000_0000_0000_0000,
           max: 0x7FFF_FFFF_FFFF_FFFF,
           doc:
             "The game's number of this frame, higher than those before. Asked again for one that was decided, " <>
               "the session answers what it decided and stays as it was; what it does not keep is `:not_found`. " <>
               "A decision without a number goes with the one before."
         ],
         deadline_ms: [
           type: {:or, [:non_neg_integer, nil]},
           max: 4_294_967_295,
           doc: "After so many milliseconds the answer is an error of kind `:deadline`."
         ],
         logits: [type: :boolean, doc: "As above, for this decision."],
         project_out: [
           type: :any,
           doc:
             "Instead of the session's, for this decision; `[]` for none, `nil` as if not given."
         ]
       ] ++ Enum.map(@sampling, fn {name, spec} -> {name, Keyword.delete(spec, :default)} end)

  # What a serving decides for all its sessions is none of theirs.
  @served Keyword.drop(@open, [:device, :lane, :weights])

  # Games in one native call.
  @games 64

  @reset [seed: @seed ++ [default: nil, doc: "Another seed; `nil` keeps the session's."]]

  @moduledoc """
  The memory of one running game over a `Sconce.Policy`.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, action} = Sconce.Session.act(session, [0.1, -0.2], deterministic: true)
      iex> action.choices
      %{action: 1}
      iex> Sconce.Session.close(session)
      :ok

  ## Modes

    * `:carry` - the state is carried through the whole game. The first frame finds it as after a
      window full of copies of that frame: a zero state is not one that play leads to.
    * `:window` - exactly the model on the last `window_size` frames, padded at the start with copies
      of the first. Each decision begins at a zero state, so every frame of the window runs through the
      layers up to the highest one with a memory; what stands above it is computed for the newest alone, and
      the state after it is not computed.
    * `{:resync, k}` - carried, but at every k-th frame, the first included, the state is that of the
      window.

  A policy without memory (`:mlp`) decides alike in all of them.

  ## Frames

  A `Sconce.Frame`, a map or a packed binary; for `{:vector, n}` a list of numbers, a binary or an Nx
  tensor. One that is refused leaves the session as it was.

  The previous action of a frame, which Melee policies see and thresholds look at, is the one given as
  `previous`, else the frame's own, else what the session chose: last, or with a `:frame_delay` so many
  frames before that, as it is the input that led to the frame.

  A policy with `queue_depth: k` (`Sconce.Embedding`) sees the last `k` inputs instead, the newest first,
  and its thresholds look at the newest. They are what the session chose, but for those that a call gives
  as `queue` or `previous` and those that a frame has: what led to a frame is `frame_delay` inputs older
  than the newest. What is given so is remembered for later frames. They belong to the memory, with
  `snapshot/1`, `restore/2` and `reset/2`. The delay is the policy's delay id.

  ## Owner

  A session belongs to the process that opened it, and ends with that process or with `close/1`;
  `transfer/2` hands it on. Calls of any other process are `:busy`, calls on a session that has ended
  are `:not_found`.

  ## Paths

  A policy is packed once for the CPU at hand, and its decisions by one step are made from what was packed
  (`:packed`); its numbers are those of `Sconce.Policy.forward/3` to 1.0e-5 of the largest, or with
  `weights: :bf16` those of the policy with its matrices rounded. Windows, and weights that are not finite, take
  the ops of the policy itself (`:core`), in f32.

  With `weights: :int8` the weights of an output are the nearest of 255 multiples of a 127th of their largest,
  and what a matrix reads is rounded to 16 bits. A matrix is in bf16 all the same if its error, that of its worst
  output as a fraction of the output's weights (root mean squares), is beyond the bound, 0.02 unless it is
  given; if it has fewer than 32 inputs; or if the CPU does not add products of bytes in one step
  (`avx512_vnni`). `info/1` tells what became of each as `matrices`. Trained ones have errors of 0.004 to 0.014.

  ## Lanes

  Opening measures what a decision costs here and now. Below a quarter of a millisecond it runs on the
  caller's scheduler, otherwise on a native thread while the caller waits. Sixty steps of a window,
  with which a carried state begins too, are mostly of the latter kind. With `lane: :inline` the bound is a whole
  millisecond: a session whose decisions take longer is not opened, and what takes longer otherwise (the window that
  warms a state, many games in one call) runs on a native thread. The cost is the least of several measurements, to
  which other work on the machine adds nothing.

  In a session of a `Sconce.Serving` the serving decides, by the batch or step by step, and the lane is `:serving`.

  A decision that its deadline ends is not made: the session stays as it was. If a thread is still at
  work on it, the next call is `:busy`. With `lane: :inline` the caller itself is at work: a decision that has begun
  in time is made, and is `:ok` however long it took.

  ## Options

  #{Options.docs(@open)}
  """

  @enforce_keys [
    :ref,
    :spec,
    :controller?,
    :logits,
    :mode,
    :path,
    :weights,
    :lane,
    :step_us,
    :window_us
  ]
  defstruct @enforce_keys ++ [:device]

  @typedoc "How the matrices of a packed policy are to be kept."
  @type weights :: :f32 | :bf16 | :int8 | {:int8, float}
  @type mode :: :carry | :window | {:resync, pos_integer}
  @type t :: %__MODULE__{
          ref: reference | Remote.t(),
          spec: Spec.t(),
          controller?: boolean,
          logits: boolean,
          mode: mode,
          path: :packed | :core,
          weights: :f32 | :bf16 | :int8,
          lane: :inline | :worker | :serving,
          step_us: float,
          window_us: float,
          device: Device.t() | nil
        }

  @doc """
  Opens a session at the start of a game, owned by the caller.
  """
  @spec open(Policy.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def open(policy, opts \\ [])

  def open(%Policy{spec: %Spec{}, device: %Device{}} = policy, opts) do
    options = Options.validate!(opts, @open)

    with {:ok, policy} <- Policy.to(policy, options[:device]) do
      native = &Native.session_open(policy.ref, &1, &2, &3)
      options = Keyword.replace!(options, :device, policy.device)
      open_by(options, &begin(policy.spec, native, &1))
    end
  end

  def open(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc false
  def served_options, do: @served

  @doc false
  # A session of a serving, see `Sconce.Serving.open/2`. `open` is told what is wanted and answers as `begin/3`.
  def open_served(opts, open) do
    Options.keyword!(opts)

    for {key, _value} <- opts, key in [:weights, :lane] do
      raise ArgumentError, "option #{inspect(key)} is the serving's: give it to start_link/1"
    end

    options = [weights: :f32, lane: :auto] ++ Options.validate!(opts, @served)
    with {:ok, session} <- open_by(options, open), do: {:ok, %{session | lane: :serving}}
  end

  defp open_by(options, open) do
    with {:ok, project_out} <- Projection.pack(options[:project_out]),
         {:ok, ref, spec, info} <- open.({to_native(options), project_out, options[:snapshot]}) do
      {:ok, new(ref, local(ref, spec), options, info)}
    end
  end

  # From another node names of heads come as text.
  defp local(%Remote{}, spec), do: Spec.new(spec)
  defp local(_ref, spec), do: spec

  @doc false
  # The native session that `open` asks for, owned by this process.
  def begin(spec, open, {options, project_out, snapshot}) do
    ref = make_ref()

    with :ok <- open.(ref, options, project_out),
         {:ok, session} <- answer(ref),
         :ok <- resume(session, snapshot),
         {:ok, info} <- Native.session_info(session),
         do: {:ok, session, spec, info}
  end

  defp resume(_session, nil), do: :ok

  defp resume(session, snapshot) do
    with {:error, _error} = refused <- native(session, :restore, [snapshot]) do
      Native.session_close(session)
      refused
    end
  end

  defp to_native(options) do
    %{
      mode: options[:mode],
      window_size: options[:window_size],
      sampling: options |> Keyword.take(Keyword.keys(@sampling)) |> Map.new(),
      seed: options[:seed] || :rand.uniform(2 ** 53) - 1,
      frame_delay: options[:frame_delay],
      weights: format(options[:weights]),
      rollback: options[:rollback],
      lane: if(options[:lane] != :auto, do: options[:lane])
    }
  end

  @doc false
  # Weights as they are asked for and as the native side has them.
  @spec format(weights) :: :f32 | :bf16 | {:int8, float}
  def format(:int8), do: {:int8, @int8_bound}
  def format(weights), do: weights

  defp new(ref, spec, options, info) do
    %__MODULE__{
      ref: ref,
      spec: spec,
      controller?: Spec.controller?(spec),
      logits: options[:logits],
      mode: options[:mode],
      path: path(info.path),
      weights: weights(info.weights),
      # Where most decisions run: a window's only if every one is.
      lane: lane(if(options[:mode] == :window, do: info.window_lane, else: info.lane)),
      step_us: info.cost.step_us,
      window_us: info.cost.window_us,
      device: options[:device]
    }
  end

  @doc """
  Decides for one frame.

  Logits or a memory that would not be finite are an error of kind `:non_finite`, and the session stays as
  it was.

  #{Options.docs(@act)}
  """
  @spec act(t, term, keyword) :: {:ok, Action.t()} | {:error, Error.t()}
  def act(session, frame, opts \\ [])

  def act(%__MODULE__{spec: %Spec{}} = session, frame, opts) do
    with {:ok, asked} <- pack(session, frame, opts),
         {:ok, decision} <- decide(asked, opts[:deadline_ms]) do
      {:ok, Action.new(session.spec, session.controller?, decision)}
    end
  end

  def act(other, _frame, _opts), do: Options.argument!("session", other, "a session")

  @doc """
  Decides for many games at once: `[{session, frame}, ...]`, each as `act/3` would, the answers in their order.

  Sessions over one policy step as one batch, in which each weight that is read serves several games: thirty two
  of them take a half to a fifth of the time, and each has the bits that it would have alone. What is wrong with one is its
  own answer; a session that is there twice is `:busy` the second time. An entry may bring options of its own,
  `{session, frame, opts}`; `:deadline_ms` is of all. Sixty-four games are one native call: those of a call that
  is late stay as they were. Sessions of a `Sconce.Serving` are decided there, one by one if its steps are inline.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [a: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> games = for seed <- 1..3, {:ok, session} = Sconce.Session.open(policy, seed: seed), do: {session, [0.5]}
      iex> answers = Sconce.Session.act_many(games, deadline_ms: 1000)
      iex> for {:ok, action} <- answers, do: action.frame
      [1, 1, 1]

  Options as those of `act/3`.
  """
  @spec act_many([{t, term} | {t, term, keyword}], keyword) :: [
          {:ok, Action.t()} | {:error, Error.t()}
        ]
  def act_many(games, opts \\ [])

  def act_many(games, opts) when length(games) >= 0 do
    start = System.monotonic_time()
    {deadline, opts} = opts |> Options.validate!(@act) |> Keyword.split([:deadline_ms])
    asked = Enum.map(games, &asked(&1, opts))

    # Those of a serving are decided there, together with whoever else asks.
    {served, own} =
      for({{session, {:ok, native}}, i} <- Enum.with_index(asked), do: {i, session, native})
      |> Enum.split_with(fn {_i, session, _native} -> session.lane == :serving end)

    firsts = for {i, session, _} <- Enum.reverse(served), into: %{}, do: {session.ref, i}

    submitted =
      for {i, session, native} <- served do
        first? = firsts[session.ref] == i

        {i, native,
         if(first?, do: submit(native, rest(deadline[:deadline_ms], start)), else: twice())}
      end

    decided = own |> decide_many(deadline[:deadline_ms], start) |> Map.new()

    decided =
      for {i, native, answer} <- submitted, into: decided do
        {i, finish(answer, [elem(native, 0)], deadline[:deadline_ms], start)}
      end

    for {{session, ready}, i} <- Enum.with_index(asked) do
      with {:ok, _native} <- ready,
           {:ok, decision} <- Map.fetch!(decided, i),
           do: {:ok, Action.new(session.spec, session.controller?, decision)}
    end
  end

  def act_many(games, _opts), do: Options.argument!("games", games, "a list of {session, frame}")

  defp twice, do: {:error, %Error{kind: :busy, op: :act, details: %{what: "session"}}}

  defp asked({%__MODULE__{} = session, frame}, opts), do: asked({session, frame, []}, opts)

  defp asked({%__MODULE__{spec: %Spec{}} = session, frame, own}, opts) do
    opts = Keyword.merge(opts, Options.keyword!(own))

    if Keyword.has_key?(own, :deadline_ms),
      do: raise(ArgumentError, "deadline_ms: is that of all games of a call")

    {session, pack(session, frame, opts)}
  end

  defp asked(other, _opts),
    do: Options.argument!("games", other, "{session, frame} or {session, frame, opts}")

  # Answers by their places. A call has no more games than a scheduler reads in a moment.
  defp decide_many(asked, deadline_ms, start) do
    calls =
      for some <- Enum.chunk_every(asked, @games),
          do: {some, submit_many(some, rest(deadline_ms, start))}

    Enum.flat_map(calls, fn {some, submitted} ->
      {places, sessions} =
        some |> Enum.map(fn {i, session, _} -> {i, session.ref} end) |> Enum.unzip()

      case finish(submitted, sessions, deadline_ms, start) do
        {:ok, answers} -> Enum.zip(places, Enum.map(answers, &of_call(&1, deadline_ms, start)))
        error -> for i <- places, do: {i, error}
      end
    end)
  end

  defp submit_many(some, deadline_ms) do
    ref = make_ref()
    natives = for {_i, _session, native} <- some, do: native
    with :queued <- Native.session_act_many(ref, natives, deadline_ms), do: {:queued, ref}
  end

  # What a decision is told, as the native side reads it.
  defp pack(session, frame, opts) do
    {logits, project_out, actions, overrides} = act_options(opts, session.logits)

    with {:ok, row} <- Embedding.pack(session.spec.embedding, frame),
         {:ok, overrides} <- with_actions(overrides, actions, session.spec),
         {:ok, project_out} <- Projection.pack(project_out),
         do: {:ok, {session.ref, row, logits, overrides, project_out}}
  end

  # Whether logits are wanted, directions, actions that were given, and what else changes the decision.
  defp act_options([], logits), do: {logits, nil, [], nil}

  defp act_options(opts, logits) do
    {call, rest} =
      opts |> Options.validate!(@act) |> Keyword.split([:logits, :deadline_ms, :project_out])

    {actions, overrides} = Keyword.split(rest, [:previous, :queue, :choices])
    overrides = if overrides != [], do: Map.new(overrides)
    {Keyword.get(call, :logits, logits), call[:project_out], actions, overrides}
  end

  # Actions that were given go to the native side as labels.
  defp with_actions(overrides, [], _spec), do: {:ok, overrides}

  # As before the first action of a game.
  defp with_actions(overrides, [{:previous, nil} | rest], spec),
    do: with_actions(overrides, rest, spec)

  defp with_actions(overrides, [{name, given} | rest], spec) do
    with {:ok, labels} <- labels(spec, name, given) do
      (overrides || %{}) |> Map.put(name, labels) |> with_actions(rest, spec)
    end
  end

  defp labels(spec, :queue, actions) do
    Enum.reduce_while(actions, {:ok, []}, fn action, {:ok, before} ->
      case input(spec, action) do
        {:ok, labels} -> {:cont, {:ok, before ++ labels}}
        error -> {:halt, error}
      end
    end)
  end

  defp labels(spec, name, action), do: Action.labels(spec, name, action)

  defp input(spec, nil), do: {:ok, Action.no_labels(spec)}
  defp input(spec, action), do: Action.labels(spec, :queue, action)

  @doc false
  # A decision, of what `pack/3` made.
  def decide(native, deadline_ms) do
    case submit(native, deadline_ms) do
      {:queued, _ref} = queued ->
        finish(queued, [elem(native, 0)], deadline_ms, System.monotonic_time())

      decided ->
        decided
    end
  end

  defp submit({%Remote{} = remote, row, logits, overrides, project_out}, deadline_ms) do
    asked = {nil, row, logits, overrides, project_out}
    with {:ok, request} <- Remote.ask(remote, :act, [asked], deadline_ms), do: {:queued, request}
  end

  defp submit({session, row, logits, overrides, project_out}, deadline_ms) do
    ref = make_ref()

    case Native.session_act(session, ref, row, {logits, deadline_ms}, overrides, project_out) do
      :queued -> {:queued, ref}
      decided -> decided
    end
  end

  # The answer to a call that began at `start`, in which these sessions are.
  defp finish(submitted, sessions, deadline_ms, start),
    do: submitted |> wait(sessions, deadline_ms, start) |> of_call(deadline_ms, start)

  defp wait({:queued, request}, [%Remote{} | _], deadline_ms, start),
    do: Remote.await(request, deadline_ms, start)

  defp wait({:queued, ref}, _sessions, nil, _start), do: answer(ref)

  defp wait({:queued, ref}, sessions, deadline_ms, start) do
    receive do
      {:sconce, ^ref, answer} -> answer
    after
      left(deadline_ms, start) ->
        # Either no decision will be made, or the answer is on the way. Sessions that refused have no say.
        if Enum.any?(sessions, &Native.session_abandon/1),
          do: {:error, Error.late(:act, deadline_ms, start)},
          else: answer(ref)
    end
  end

  defp wait(decided, _sessions, _deadline_ms, _start), do: decided

  @doc false
  # Who is late is told the deadline of the call, not what was left of it when a part of it was asked for.
  def of_call({:error, %Error{kind: :deadline, op: op}}, deadline_ms, start)
      when deadline_ms != nil,
      do: {:error, Error.late(op, deadline_ms, start)}

  def of_call(answer, _deadline_ms, _start), do: answer

  @doc false
  # What is left of a deadline, if there is one.
  def rest(nil, _start), do: nil
  def rest(deadline_ms, start), do: left(deadline_ms, start)

  @doc false
  # Milliseconds, the last one begun: the answer to who is late is no earlier than its deadline.
  def left(nil, _start), do: :infinity

  def left(deadline_ms, start) do
    passed = System.convert_time_unit(System.monotonic_time() - start, :native, :millisecond)
    max(deadline_ms - passed, 0)
  end

  # Comes in any case: the native side answers once, also for work that was dropped.
  defp answer(ref) do
    receive do
      {:sconce, ^ref, answer} -> answer
    end
  end

  @doc """
  Back to the start of a game.

  The same frames lead to the same choices again, unless there is another seed.

  #{Options.docs(@reset)}
  """
  @spec reset(t, keyword) :: :ok | {:error, Error.t()}
  def reset(%__MODULE__{ref: ref}, opts \\ []) do
    [seed: seed] = Options.validate!(opts, @reset)
    native(ref, :reset, [seed])
  end

  @doc """
  Takes back the decisions for the game's frame `game_frame` and for all after it, and answers how many.

  For games that predict the other player and correct themselves: the session must be opened with
  `rollback: n`, and frames be given with their numbers (`game_frame:`). Nothing is copied; it takes 2.6 us
  for eight frames. What is decided again is drawn from the same random numbers. A frame further back than the last
  `n` decisions is `:not_found`, and the session stays as it was. A snapshot has the last decision, and none
  before it.

      iex> spec = [embedding: {:vector, 1}, backbone: :gru, hidden_size: 8, heads: [a: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, rollback: 8)
      iex> for n <- 1..5, do: {:ok, _} = Sconce.Session.act(session, [n / 5], game_frame: n)
      iex> Sconce.Session.rollback(session, 4)
      {:ok, 2}
      iex> {:ok, action} = Sconce.Session.act(session, [0.7], game_frame: 4)
      iex> {:ok, ^action} = Sconce.Session.act(session, [0.7], game_frame: 4)
      iex> action.frame
      4
  """
  @spec rollback(t, integer) :: {:ok, non_neg_integer} | {:error, Error.t()}
  def rollback(%__MODULE__{ref: ref}, game_frame)
      when game_frame in -0x8000_0000_0000_0000..0x7FFF_FFFF_FFFF_FFFF,
      do: native(ref, :rollback, [game_frame])

  def rollback(%__MODULE__{}, other),
    do: Options.argument!("game_frame", other, "an integer of 64 bits")

  @doc """
  The session's memory as a binary: state, kept frames, seed, number of decisions, latest inputs.

  A carried GRU of 256 x 2 takes 2 KB; a window its frames besides.
  """
  @spec snapshot(t) :: {:ok, binary} | {:error, Error.t()}
  def snapshot(%__MODULE__{ref: ref}), do: native(ref, :snapshot, [])

  @doc """
  Goes on from a snapshot, exactly: the same frames lead to the same choices.

  The snapshot may be another session's over a policy of the same Spec, with the same mode, window size
  and frame delay, otherwise it is a `:mismatch`. One that is cut off or changed is `:corrupt`. Either leaves the
  session as it was.
  """
  @spec restore(t, binary) :: :ok | {:error, Error.t()}
  def restore(%__MODULE__{ref: ref}, snapshot) when is_binary(snapshot),
    do: native(ref, :restore, [snapshot])

  def restore(%__MODULE__{}, other), do: Options.argument!("snapshot", other, "a binary")

  @doc """
  Hands a session to another process, which gets the handle by other means.
  """
  @spec transfer(t, pid) :: :ok | {:error, Error.t()}
  def transfer(%__MODULE__{ref: ref}, pid) when is_pid(pid) and node(pid) == node(),
    do: native(ref, :transfer, [pid])

  def transfer(%__MODULE__{}, other),
    do: Options.argument!("pid", other, "a process of this node")

  @doc """
  Ends a session and frees its memory. Closing it again is `:ok` too.
  """
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{ref: ref}), do: native(ref, :close, [])

  @doc """
  What a session is at this moment: `mode`, `window_size`, `frame_delay`, `seed`, `frames` (decisions since its
  start), `rollback`, `bytes` (of its memory, without the weights), `path` (what makes most decisions: `:packed`, the
  weights packed for this CPU, or `:core`), `weights` (how those are kept), `matrices` (of what was packed, each with
  its `name`, `outputs`, `inputs`, `weights` and `error`, the fraction of the weights that was lost), `lane` and
  `window_lane`, and `step_us` and `window_us`, the measured costs of a decision by one step and by a window.
  """
  @spec info(t) :: {:ok, map} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref, mode: mode} = session) do
    with {:ok, info} <- native(ref, :info, []) do
      {cost, info} = Map.pop!(info, :cost)
      lanes = lanes(session, info)
      matrices = Enum.map(info.matrices, &%{&1 | weights: weights(&1.weights)})
      packed = %{path: path(info.path), weights: weights(info.weights), matrices: matrices}
      ways = Map.merge(lanes, packed)
      {:ok, info |> Map.merge(cost) |> Map.merge(ways) |> Map.put(:mode, mode)}
    end
  end

  defp lanes(%{lane: :serving}, _info), do: %{lane: :serving, window_lane: :serving}
  defp lanes(_own, info), do: %{lane: lane(info.lane), window_lane: lane(info.window_lane)}

  @doc false
  # A call's part on the native side: here, or by the process on the node of the memory, which calls this too.
  def native(%Remote{} = remote, :close, []), do: Remote.close(remote)
  def native(%Remote{} = remote, :transfer, [pid]), do: Remote.transfer(remote, pid)
  def native(%Remote{} = remote, op, args), do: Remote.call(remote, op, args)
  def native(ref, :reset, [seed]), do: Native.session_reset(ref, seed)
  def native(ref, :rollback, [game_frame]), do: Native.session_rollback(ref, game_frame)
  def native(ref, :snapshot, []), do: Call.run(&Native.session_snapshot(ref, &1))

  def native(ref, :restore, [snapshot]) do
    with {:ok, true} <- Call.run(&Native.session_restore(ref, &1, snapshot)), do: :ok
  end

  def native(ref, :info, []), do: Native.session_info(ref)
  def native(ref, :transfer, [pid]), do: Native.session_transfer(ref, pid)
  def native(ref, :close, []), do: Native.session_close(ref)

  defp path("packed"), do: :packed
  defp path("core"), do: :core

  defp weights("f32"), do: :f32
  defp weights("bf16"), do: :bf16
  defp weights("int8"), do: :int8

  defp lane("inline"), do: :inline
  defp lane("worker"), do: :worker

  defimpl Inspect do
    def inspect(session, _opts) do
      us = if session.mode == :window, do: session.window_us, else: session.step_us
      policy = Sconce.Policy.Spec.summary(session.spec)
      lane = "#{session.lane}#{elsewhere(session.ref)}"
      cost = "#{session.path} #{session.weights}, #{lane}, #{round(us)} us a decision"
      device = Sconce.Device.aside(session.device)

      Sconce.Text.printable(
        "#Sconce.Session<#{policy} · #{mode(session.mode)} · #{cost}#{device}>"
      )
    end

    defp elsewhere(%Sconce.Session.Remote{pid: pid}), do: " on #{node(pid)}"
    defp elsewhere(_ref), do: ""

    defp mode({:resync, every}), do: "resync #{every}"
    defp mode(mode), do: mode
  end
end
