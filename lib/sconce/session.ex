defmodule Sconce.Session do
  alias Sconce.{Action, Device, Error, Native, Options, Policy, Projection}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Session.{Catalogue, Decision, Remote}

  @int8_bound 0.02

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
    options = Options.validate!(opts, Catalogue.schema(:open))

    with {:ok, policy} <- Policy.to(policy, options[:device]) do
      native = &Native.session_open(policy.ref, &1, &2, &3)
      options = Keyword.replace!(options, :device, policy.device)
      open_by(options, &begin(policy.spec, native, &1))
    end
  end

  def open(other, _opts), do: Options.argument!("policy", other, "a policy")

  @doc false
  # A session of a serving, see `Sconce.Serving.open/2`. `open` is told what is wanted and answers as `begin/3`.
  def open_served(opts, open) do
    Options.keyword!(opts)

    for {key, _value} <- opts, key in [:weights, :lane] do
      raise ArgumentError, "option #{inspect(key)} is the serving's: give it to start_link/1"
    end

    options = [weights: :f32, lane: :auto] ++ Options.validate!(opts, Catalogue.schema(:served))
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
    with {:ok, session} <- Call.run(&open.(&1, options, project_out)),
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
      sampling: options |> Keyword.take(Keyword.keys(Catalogue.schema(:sampling))) |> Map.new(),
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

  #{Catalogue.docs(:act)}
  """
  @spec act(t, term, keyword) :: {:ok, Action.t()} | {:error, Error.t()}
  def act(session, frame, opts \\ [])

  def act(%__MODULE__{spec: %Spec{}} = session, frame, opts) do
    with {:ok, asked} <- Decision.pack(session, frame, opts),
         {:ok, decision} <- Decision.make(asked, opts[:deadline_ms]) do
      {:ok, action(session, decision)}
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

    {deadline, opts} =
      opts |> Options.validate!(Catalogue.schema(:act)) |> Keyword.split([:deadline_ms])

    asked = Enum.map(games, &asked(&1, opts))
    answers = Decision.make_all(asked, deadline[:deadline_ms], start)

    for {{session, _asked}, answer} <- Enum.zip(asked, answers),
        do: with({:ok, decision} <- answer, do: {:ok, action(session, decision)})
  end

  def act_many(games, _opts), do: Options.argument!("games", games, "a list of {session, frame}")

  defp asked({%__MODULE__{} = session, frame}, opts), do: asked({session, frame, []}, opts)

  defp asked({%__MODULE__{spec: %Spec{}} = session, frame, own}, opts) do
    opts = Keyword.merge(opts, Options.keyword!(own))

    if Keyword.has_key?(own, :deadline_ms),
      do: raise(ArgumentError, "deadline_ms: is that of all games of a call")

    {session, Decision.pack(session, frame, opts)}
  end

  defp asked(other, _opts),
    do: Options.argument!("games", other, "{session, frame} or {session, frame, opts}")

  defp action(session, decision), do: Action.new(session.spec, session.controller?, decision)

  @doc """
  Back to the start of a game.

  The same frames lead to the same choices again, unless there is another seed.

  #{Catalogue.docs(:reset)}
  """
  @spec reset(t, keyword) :: :ok | {:error, Error.t()}
  def reset(%__MODULE__{ref: ref}, opts \\ []) do
    [seed: seed] = Options.validate!(opts, Catalogue.schema(:reset))
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
