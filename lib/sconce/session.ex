defmodule Sconce.Session do
  alias Sconce.{Action, Device, Error, Native, Options, Policy}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Session.{Catalogue, Decision, Formats, Opening, Remote}

  import Sconce.Tensor, only: [is_tensor: 1]

  @int8_bound 0.02
  @int4_bound 0.2

  @moduledoc """
  The memory of one running game over a `Sconce.Policy`, which decides frame by frame.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, action} = Sconce.Session.act(session, [0.1, -0.2], deterministic: true)
      iex> action.choices
      %{action: 1}
      iex> Sconce.Session.close(session)
      :ok

  The guide [Sessions and servings](serving.html) covers rollback, int8 weights, lanes and snapshots.

  ## Modes

    * `:carry` - the state is carried through the whole game. Before the first frame, the state is warmed with a
      window of copies of that frame, because play never reaches a zero state.
    * `:window` - the policy runs on the last `window_size` frames, padded at the start with copies of the first frame.
      Each decision starts from a zero state and computes every frame of the window, up to the highest layer with
      memory. The layers above it are computed for the newest frame only.
    * `{:resync, k}` - like `:carry`, but at every k-th frame, including the first, the state is recomputed from the
      window.

  For a policy without memory (`:mlp`), all modes give the same decisions.

  ## Frames

  A frame is a `Sconce.Frame`, a map, a packed binary, or an Nx tensor of the packed row, `{n}` or `{1, n}`. For
  `{:vector, n}` it may be a list of numbers. A refused frame leaves the session unchanged.

  Melee policies read the previous action of a frame, and button thresholds depend on it. The previous action is
  the option `previous`, or else the frame's own, or else the session's own choice: the last choice, or with a
  `:frame_delay` of `d` the choice `d` frames before the last, which led to the frame.

  A policy with `queue_depth: k` (`Sconce.Embedding`) reads the last `k` inputs, newest first, and thresholds depend
  on the newest. The session fills the queue with its own choices. The options `queue` and `previous` and the frame's
  own previous action replace these inputs, for later frames too; the input that led to a frame is `frame_delay` inputs
  older than the newest. The queue is part of the memory that `snapshot/1`, `restore/2` and `reset/2` handle. The delay
  id of the policy is the `:frame_delay`.

  ## Owner

  A session belongs to the process that opened it, and ends with that process or by `close/1`. `transfer/2` gives it to
  another process. Calls from other processes are errors of kind `:busy`, and calls on an ended session of kind
  `:not_found`.

  ## Deadlines

  A decision that misses its `:deadline_ms` is not made, and the session is unchanged. If a thread still computes the
  decision, the next call is `:busy`. With `lane: :inline` the caller computes the decision itself: a decision that
  has begun in time is made, and the result is `:ok` however long the computation takes.

  ## Options

  #{Catalogue.docs(:open)}
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
  defstruct @enforce_keys ++ [:device, :gate]

  @typedoc """
  Format of the matrices of a packed policy. A number is the error bound, by default 0.02 for `:int8` and 0.2 for
  `:int4`.
  """
  @type weights :: :stored | :f32 | :bf16 | :int8 | :int4 | {:int8 | :int4, float}
  @typedoc """
  Format that a packed policy took: the one with the fewest bits of its matrices. `:two_four` is f32 of which each four
  inputs have two values and their places, 17 bits for each weight.
  """
  @type kept :: :f32 | :two_four | :bf16 | :int8 | :int4
  @typedoc "The frames that a decision remembers, see \"Modes\" above."
  @type mode :: :carry | :window | {:resync, pos_integer}
  @typedoc "A session; `info/1` explains the fields."
  @type t :: %__MODULE__{
          ref: reference | Remote.t(),
          spec: Spec.t(),
          controller?: boolean,
          logits: boolean,
          mode: mode,
          path: :packed | :core,
          weights: kept,
          lane: :inline | :worker | :serving,
          step_us: float,
          window_us: float,
          device: Device.t() | nil,
          gate: struct | nil
        }

  @doc """
  Opens a session at the start of a game, owned by the caller. The options are listed above.

      iex> spec = [embedding: {:vector, 2}, backbone: :gru, hidden_size: 8, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, mode: :window, window_size: 30)
      iex> {session.mode, session.path}
      {:window, :core}
  """
  @spec open(Policy.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def open(policy, opts \\ [])

  def open(%Policy{spec: %Spec{}, device: %Device{}} = policy, opts) do
    options = Options.validate!(opts, Catalogue.schema(:open))

    with {:ok, policy} <- Policy.to(policy, options[:device]),
         {:ok, weights} <- Formats.fastest(policy, options[:weights], options[:tuner]) do
      native = &Native.session_open(policy.ref, &1, &2, &3)
      options = Keyword.merge(options, device: policy.device, weights: weights)
      Opening.open(options, &Opening.begin(policy.spec, native, &1))
    end
  end

  def open(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc false
  # Opens a session of a serving, for `Sconce.Serving.open/2`. `open` takes the same request as `Opening.begin/3` and returns
  # the same answer.
  def open_served(opts, open) do
    Options.keyword!(opts)

    for {key, _value} <- opts, key in [:weights, :lane, :tuner] do
      raise ArgumentError,
            "option #{inspect(key)} belongs to the serving: give it to start_link/1"
    end

    options =
      [weights: :stored, lane: :auto] ++ Options.validate!(opts, Catalogue.schema(:served))

    with {:ok, session} <- Opening.open(options, open), do: {:ok, %{session | lane: :serving}}
  end

  @doc false
  # The format of weights, with the default error bounds.
  @spec format(weights) :: :stored | :f32 | :bf16 | {:int8 | :int4, float}
  def format(:int8), do: {:int8, @int8_bound}
  def format(:int4), do: {:int4, @int4_bound}
  def format(weights), do: weights

  @doc """
  Decides for one frame and remembers it.

  If the logits or the new state are not finite, the result is an error of kind `:non_finite`, and the session is
  unchanged.

  #{Catalogue.docs(:act)}

      iex> spec = [embedding: {:vector, 2}, backbone: :gru, hidden_size: 8, heads: [move: {:categorical, 3}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, action} = Sconce.Session.act(session, [0.5, -0.5], logits: true, mask: %{move: [true, false, true]})
      iex> {action.choices.move in [0, 2], length(action.logits.move), action.frame}
      {true, 3, 1}
  """
  @spec act(t, term, keyword) :: {:ok, Action.t()} | {:error, Error.t()}
  def act(session, frame, opts \\ [])

  def act(%__MODULE__{spec: %Spec{}} = session, frame, opts) do
    with {:ok, asked} <- Decision.pack(session, frame, opts),
         {:ok, decision} <- Decision.make(asked, opts[:deadline_ms], session.gate) do
      {:ok, action(session, decision, opts[:as])}
    end
  end

  def act(other, _frame, _opts), do: Options.argument!("session", other, "a session")

  @doc """
  Decides for many games at once, `[{session, frame}, ...]`, like `act/3` for each, and returns the answers in order.

  Sessions over the same policy step as one batch, so that each weight is read once for several games, with exactly
  the same results. On a CPU with AVX-512, 32 games take a half to a fifth of the time. An error concerns only its own game.
  A session that appears twice is `:busy` the second time. An entry may have its own options, `{session, frame, opts}`,
  except `:deadline_ms`, which applies to the whole call.

  If Nx is loaded, `games` may also be `{sessions, frames}` with a tensor of one raw row for each session, `{n,
  raw_width}`. The tensor is split without a copy; another shape is an error of kind `:mismatch` for each game.

  Up to 64 games are one native call. If that call is late, all of its games are unchanged. Sessions of a
  `Sconce.Serving` are decided by the serving, one by one if its steps are inline.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [a: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> games = for seed <- 1..3, {:ok, session} = Sconce.Session.open(policy, seed: seed), do: {session, [0.5]}
      iex> answers = Sconce.Session.act_many(games, deadline_ms: 1000)
      iex> for {:ok, action} <- answers, do: action.frame
      [1, 1, 1]

  The options are those of `act/3`.
  """
  @spec act_many([{t, term} | {t, term, keyword}] | {[t], struct}, keyword) :: [
          {:ok, Action.t()} | {:error, Error.t()}
        ]
  def act_many(games, opts \\ [])

  def act_many({sessions, frames}, opts) when length(sessions) >= 0 and is_tensor(frames) do
    case Decision.rows(frames, length(sessions)) do
      {:ok, rows} -> sessions |> Enum.zip(rows) |> act_many(opts)
      error -> Enum.map(sessions, fn _session -> error end)
    end
  end

  def act_many(games, opts) when length(games) >= 0 do
    start = System.monotonic_time()

    {deadline, opts} =
      opts |> Options.validate!(Catalogue.schema(:act)) |> Keyword.split([:deadline_ms])

    {asked, forms} = games |> Enum.map(&asked(&1, opts)) |> Enum.unzip()
    answers = Decision.make_all(asked, deadline[:deadline_ms], start)

    for {{session, _asked}, form, answer} <- Enum.zip([asked, forms, answers]),
        do: with({:ok, decision} <- answer, do: {:ok, action(session, decision, form)})
  end

  def act_many(games, _opts), do: Options.argument!("games", games, "a list of {session, frame}")

  defp asked({%__MODULE__{} = session, frame}, opts), do: asked({session, frame, []}, opts)

  defp asked({%__MODULE__{spec: %Spec{}} = session, frame, own}, opts) do
    opts = Keyword.merge(opts, Options.keyword!(own))

    if Keyword.has_key?(own, :deadline_ms),
      do: raise(ArgumentError, "deadline_ms: give it to the whole call, not to one game")

    {{session, Decision.pack(session, frame, opts)}, opts[:as]}
  end

  defp asked(other, _opts),
    do: Options.argument!("games", other, "{session, frame} or {session, frame, opts}")

  defp action(session, decision, form) do
    action = Action.new(session.spec, session.controller?, decision)
    if form == :nx, do: Action.tensors(action), else: action
  end

  @doc """
  Resets a session to the start of a game. With the same seed, the same frames lead to the same choices again.

  #{Catalogue.docs(:reset)}

      iex> spec = [embedding: {:vector, 1}, backbone: :gru, hidden_size: 8, heads: [move: {:categorical, 3}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, first} = Sconce.Session.act(session, [0.5])
      iex> Sconce.Session.reset(session)
      :ok
      iex> {:ok, again} = Sconce.Session.act(session, [0.5])
      iex> again == first
      true
  """
  @spec reset(t, keyword) :: :ok | {:error, Error.t()}
  def reset(%__MODULE__{ref: ref}, opts \\ []) do
    [seed: seed] = Options.validate!(opts, Catalogue.schema(:reset))
    native(ref, :reset, [seed])
  end

  @doc """
  Takes back the decision for the frame with number `game_frame` and all later decisions. Returns the number of
  decisions taken back.

  Rollback is for games that predict the other player and correct mispredictions. Open the session with `rollback: n`,
  and give each frame its number (`game_frame:`). Nothing is copied: a rollback of eight frames takes 2.6 us. Repeated
  decisions use the same random numbers. A frame before the last `n` decisions is an error of kind `:not_found`, and the
  session is unchanged. A snapshot includes the last decision only.

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
  Returns the memory of a session as a binary: state, stored frames, seed, number of decisions, latest inputs.

  The snapshot of a carried GRU of 256 x 2 has 2 KB. In mode `:window` it also has the frames.

      iex> spec = [embedding: {:vector, 1}, backbone: :gru, hidden_size: 8, heads: [move: {:categorical, 3}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, _first} = Sconce.Session.act(session, [0.5])
      iex> {:ok, snapshot} = Sconce.Session.snapshot(session)
      iex> {:ok, copy} = Sconce.Session.open(policy, snapshot: snapshot)
      iex> Sconce.Session.act(copy, [0.6]) == Sconce.Session.act(session, [0.6])
      true
  """
  @spec snapshot(t) :: {:ok, binary} | {:error, Error.t()}
  def snapshot(%__MODULE__{ref: ref}), do: native(ref, :snapshot, [])

  @doc """
  Restores the memory of a snapshot: the same frames then lead to the same choices.

  The snapshot may come from another session, over a policy of the same Spec and with the same mode, window size and
  frame delay; otherwise the error is of kind `:mismatch`. A snapshot that is cut off or modified is `:corrupt`. Both
  errors leave the session unchanged.

      iex> spec = [embedding: {:vector, 1}, backbone: :gru, hidden_size: 8, heads: [move: {:categorical, 3}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, snapshot} = Sconce.Session.snapshot(session)
      iex> {:ok, first} = Sconce.Session.act(session, [0.5])
      iex> Sconce.Session.restore(session, snapshot)
      :ok
      iex> Sconce.Session.act(session, [0.5]) == {:ok, first}
      true
  """
  @spec restore(t, binary) :: :ok | {:error, Error.t()}
  def restore(%__MODULE__{ref: ref}, snapshot) when is_binary(snapshot),
    do: native(ref, :restore, [snapshot])

  def restore(%__MODULE__{}, other), do: Options.argument!("snapshot", other, "a binary")

  @doc """
  Makes another process of this node the owner of a session. Send it the handle in a message.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy)
      iex> task = Task.async(fn -> receive(do: (session -> Sconce.Session.act(session, [0.5]))) end)
      iex> Sconce.Session.transfer(session, task.pid)
      :ok
      iex> {:error, error} = Sconce.Session.act(session, [0.5])
      iex> error.kind
      :busy
      iex> send(task.pid, session)
      iex> {:ok, action} = Task.await(task)
      iex> action.frame
      1
  """
  @spec transfer(t, pid) :: :ok | {:error, Error.t()}
  def transfer(%__MODULE__{ref: ref}, pid) when is_pid(pid) and node(pid) == node(),
    do: native(ref, :transfer, [pid])

  def transfer(%__MODULE__{}, other),
    do: Options.argument!("pid", other, "a process of this node")

  @doc """
  Ends a session and frees its memory. Closing an ended session is `:ok`.

      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy)
      iex> {Sconce.Session.close(session), Sconce.Session.close(session)}
      {:ok, :ok}
      iex> {:error, error} = Sconce.Session.act(session, [0.5])
      iex> error.kind
      :not_found
  """
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{ref: ref}), do: native(ref, :close, [])

  @doc """
  Returns the current properties of a session.

  | key | meaning |
  |---|---|
  | `mode`, `window_size`, `frame_delay`, `seed`, `rollback` | the options of the session |
  | `frames` | decisions since the start of the game |
  | `bytes` | bytes of the session's memory, without the weights |
  | `path` | how most decisions are computed: `:packed`, by packed weights, or `:core`, by the ops of the policy |
  | `weights` | format of the packed weights |
  | `matrices` | packed matrices: `name`, `outputs`, `inputs`, `weights` (format), `bits` (of a weight, without scales), `group` (inputs that share a scale, for `:int4`), `rank` (of a product of two matrices, else nil), `error` (lost fraction) |
  | `lane`, `window_lane` | where a step, and a window, is computed |
  | `step_us`, `window_us` | measured time of a decision by one step, and by a window |

      iex> spec = [embedding: {:vector, 2}, backbone: :gru, hidden_size: 8, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, session} = Sconce.Session.open(policy, seed: 7)
      iex> {:ok, info} = Sconce.Session.info(session)
      iex> {info.mode, info.seed, info.frames, info.path, info.weights}
      {:carry, 7, 0, :packed, :f32}
  """
  @spec info(t) :: {:ok, map} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref, mode: mode} = session) do
    with {:ok, info} <- native(ref, :info, []) do
      {cost, info} = Map.pop!(info, :cost)
      lanes = lanes(session, info)
      matrices = Enum.map(info.matrices, &%{&1 | weights: kept(&1.weights)})
      packed = %{path: Opening.path(info.path), weights: kept(info.weights), matrices: matrices}
      ways = Map.merge(lanes, packed)
      {:ok, info |> Map.merge(cost) |> Map.merge(ways) |> Map.put(:mode, mode)}
    end
  end

  defp lanes(%{lane: :serving}, _info), do: %{lane: :serving, window_lane: :serving}

  defp lanes(_own, info),
    do: %{lane: Opening.lane(info.lane), window_lane: Opening.lane(info.window_lane)}

  @doc false
  # Makes the native part of a call here, or asks the process that owns the session on another node, which then calls
  # this function.
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

  @doc false
  # The format of this native name.
  @spec kept(String.t()) :: kept
  def kept("f32"), do: :f32
  def kept("two_four"), do: :two_four
  def kept("bf16"), do: :bf16
  def kept("int8"), do: :int8
  def kept("int4"), do: :int4

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
