defmodule Sconce.Rollout do
  alias Sconce.{Error, Native, Options, Policy, Pressure, Serving, Session}
  alias Sconce.Policy.Spec
  alias Sconce.Rollout.{Courier, Nodes}
  alias Sconce.Session.Decision

  @steps [type: :pos_integer, max: 65_536]

  @start [
    serving: [
      type: :any,
      required: true,
      doc: "The serving of this node whose sessions play: a pid, a name or a struct."
    ],
    learner: [
      type: :any,
      default: nil,
      doc:
        "Rollout of another node, to which segments go and from which weights come: a pid or `{name, node}`."
    ],
    leader: [
      type: :atom,
      default: nil,
      doc:
        "Name of a `Sconce.Leader` of this node: while it does not lead, segments of other nodes are refused, and they " <>
          "get no weights."
    ],
    reward_terms: [
      type: {:or, [nil, {:list, :atom}]},
      default: nil,
      doc: "Names of the terms of a reward; without it a reward is one number."
    ],
    capacity: [
      type: :pos_integer,
      default: 65_536,
      max: 100_000_000,
      doc: "Decisions that wait for the learner at most."
    ],
    poll_ms: [
      type: :pos_integer,
      default: 20,
      max: 60_000,
      doc: "Milliseconds between two looks for new weights and, with a `:learner`, for segments."
    ],
    batch_bytes: [
      type: :pos_integer,
      default: 1_048_576,
      max: 1_073_741_824,
      doc: "Bytes of segments in one message to a `:learner`; one segment is always sent."
    ],
    in_flight: [
      type: :pos_integer,
      default: 4,
      max: 1_024,
      doc: "Messages to a `:learner` without an answer at most."
    ],
    pressure: [
      type: :keyword,
      default: [],
      doc:
        "What follows if a `:learner` does not answer, in the options of `Sconce.Pressure.new/2`; `:stop` ends the rollout."
    ],
    name: [type: :any, default: nil, doc: "Name of the process."]
  ]
  @open [
    steps: @steps ++ [default: 64, doc: "Decisions of a segment."],
    stride:
      @steps ++
        [
          default: 16,
          doc:
            "Decisions between two stored memories, for a policy with memory: `:sequence_length` of the run."
        ],
    hold: [
      type: :non_neg_integer,
      default: 0,
      max: 65_536,
      doc: "Decisions for which a complete segment waits for late rewards."
    ]
  ]

  @moduledoc """
  Learning from live games, which cannot be stepped: sessions play, rewards are reported when they are known, and a run of
  `Sconce.PPO` learns meanwhile.

      {:ok, policy} = Sconce.Policy.load("imitated.safetensors")
      {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving)
      {:ok, run} = Sconce.PPO.start_link(env: {:live, rollout}, out: "run", environments: 32)

      # In the process of each game:
      {:ok, session} = Sconce.Rollout.open(rollout)
      {:ok, action} = Sconce.Session.act(session, frame)
      :ok = Sconce.Rollout.reward(session, 0.1)
      :ok = Sconce.Rollout.done(session, :terminated)

  What a session decides is recorded on the native side: frame, choice, logits, version of the weights, and memory. A
  segment is complete after `:steps` decisions or at the end of an episode, and then goes to the learner. The run learns
  once it has `:environments` times `:rollout_steps` decisions, and its new weights go to the serving between two batches.
  A `:mask` of a decision is recorded with it. The policy needs a value (`value_head: true`), and sessions draw from the policy as it is: an option that changes the
  draw is refused.

  ## Reward terms

      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, reward_terms: [:damage, :stock])
      weights = [damage: 0.01, stock: 1.0]
      {:ok, run} = Sconce.PPO.start_link(env: {:live, rollout}, out: "run", reward_weights: weights)

      :ok = Sconce.Rollout.reward(session, %{damage: 12})

  Games report terms, and the run weighs them: the weights of a run say nothing to the games, which go on as they are.
  `rewards` of an update has the mean of each term per decision, before its weight; returns of episodes have the weights.
  Without `:reward_terms` there is one term, `reward`.

  ## Statistics and a teacher

  `:normalise_observations`, `:normalise_rewards` and `:teacher` work as in environments. Frames are recorded as they are,
  and the run normalises them by its present statistics, which the serving gets with the weights. The policy of the serving
  must then be new, with frames that are plain vectors; the run begins with new weights, and observes the decisions of one
  update before the first one. Sums of an episode, such as the memory of a teacher, go on from segment to segment. They
  begin again at zero after a segment that was dropped, and in a game that sent none for more than `:max_lag` updates. A
  teacher reads the same frames as the policy.

  ## Lag

  Games go on while the run learns, so a segment may be of older weights. Its recorded likelihoods count, and the ratio to
  them is clipped. A segment with a decision more than `:max_lag` updates old is dropped and counted. `figures` of an update
  have `lag` (mean over decisions, in updates), and the number of segments that were `stale`, `displaced` by newer ones in a
  full queue, or `misfits`, and that are `waiting`.

  ## Other nodes

      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, learner: {MyApp.Rollout, :"learner@host"})

  Both rollouts need the same `:reward_terms`: segments of other terms are `misfits`. Segments go there as binaries, in
  order, in messages of `:batch_bytes` or of what is there at a look, and weights come back. At most `:in_flight` messages wait
  for an answer. A full queue of the learner is asked again later, while games go
  on and new segments displace the oldest ones. A node that dies loses its unfinished segments. One that was cut off for a
  while sends its segments when it is back, and the learner counts those that are too old.

  A rollout that restarts has a new queue: its games open new sessions, and its run is resumed.

  With `Sconce.Leader` the learner is on the node that leads, and the rollouts of the games find it there. Two learners that
  a partition has made would share the games and forget what the other one has learned:

      # Child of the leader on each node that may learn:
      {Sconce.Rollout, serving: MyApp.Serving, name: MyApp.Rollout, leader: :learner}

      # Games on other nodes:
      learner = {:via, Sconce.Leader, {{:learner, members}, MyApp.Rollout}}
      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, learner: learner)

  A rollout with `:leader` refuses the segments of other nodes from the end of its lease on, even if its process was
  suspended meanwhile. They stay on their nodes until the next leader takes them. Its run counts versions of weights from
  the beginning, and drops segments of versions that it has not made yet as `stale`.

  ## Options

  #{Options.docs(@start)}
  """

  use Sconce.Server, restart: :transient

  @typedoc "The pid or the name of a rollout, also on another node."
  @type rollout :: GenServer.server()

  @doc """
  Starts a rollout; the moduledoc has an example.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, heads: [go: {:bernoulli, 1}], value_head: true]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, rollout} = Sconce.Rollout.start_link(serving: serving)
      iex> {:ok, session} = Sconce.Rollout.open(rollout, steps: 2)
      iex> for _ <- 1..3, do: {:ok, _} = Sconce.Session.act(session, [0.1, 0.2])
      iex> Sconce.Rollout.reward(session, 1.0)
      :ok
      iex> Sconce.Rollout.done(session, :terminated)
      :ok
      iex> {:ok, info} = Sconce.Rollout.info(rollout)
      iex> {info.received, info.decisions, info.waiting}
      {2, 3, 2}
  """
  @spec start_link(keyword) :: GenServer.on_start() | {:error, Error.t()}
  def start_link(opts) do
    options = Options.validate!(opts, @start)
    Options.name!(options[:name])
    name = if options[:name], do: [name: options[:name]], else: []
    learner = options[:learner]
    pressure = Pressure.new(:network, options[:pressure])

    learner == nil or Options.server?(learner) ||
      Options.argument!("option :learner", learner, "a pid, a name or {name, node}")

    with {:ok, %{policy: policy, pid: pid}} <- Serving.info(options[:serving]),
         :ok <- here(pid),
         terms = options[:reward_terms] || [:reward],
         spec = Spec.to_native(policy.spec),
         {:ok, inbox} <- Native.inbox_new(spec, Enum.map(terms, &Spec.text/1), options[:capacity]) do
      state = %{
        serving: options[:serving],
        inbox: inbox,
        terms: terms,
        learner: learner,
        leader: options[:leader],
        refused: 0,
        poll_ms: options[:poll_ms],
        courier: Keyword.put(options, :pressure, pressure),
        version: nil,
        error: nil,
        packed: nil,
        senders: %{},
        unsent: :counters.new(1, [])
      }

      GenServer.start_link(__MODULE__, state, name)
    end
  end

  defp here(pid) when node(pid) == node(), do: :ok

  defp here(pid) do
    details = %{what: "serving", expected: "one of this node", got: "one of #{node(pid)}"}
    {:error, %Error{kind: :mismatch, op: :rollout, details: details}}
  end

  @doc """
  Opens a session of the rollout's serving whose decisions are recorded. It belongs to the caller. Its memory begins at
  zero, as it does for the learner. `start_link/1` has an example.

  Options of `Sconce.Serving.open/2` are accepted too; the mode is `:carry`.

  #{Options.docs(@open)}
  """
  @spec open(rollout, keyword) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(rollout, opts \\ []) do
    {own, opts} = opts |> Options.keyword!() |> Keyword.split(Keyword.keys(@open))
    own = own |> Options.validate!(@open) |> Map.new()

    with {:ok, %{serving: serving, inbox: inbox}} <- ask(rollout, :source, :open),
         {:ok, session} <- Serving.open(serving, [mode: :carry] ++ opts) do
      case Native.session_record(session.ref, inbox, own) do
        :ok ->
          {:ok, session}

        refused ->
          Session.close(session)
          refused
      end
    end
  end

  @doc """
  Adds a reward to the last decision of a recorded session, or with `frame:` to an earlier one of the episode, by the
  `frame` of its action. `start_link/1` has an example.

  In a rollout with `:reward_terms` a reward is a map or a keyword list of terms. A term that is not named is 0, and
  reports of one decision add up:

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, heads: [go: {:bernoulli, 1}], value_head: true]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, reward_terms: [:damage, :stock])
      iex> {:ok, session} = Sconce.Rollout.open(rollout)
      iex> {:ok, action} = Sconce.Session.act(session, [0.1, 0.2])
      iex> Sconce.Rollout.reward(session, %{damage: 0.3, stock: -1.0})
      :ok
      iex> Sconce.Rollout.reward(session, [damage: 0.1], frame: action.frame)
      :ok
      iex> {:error, error} = Sconce.Rollout.reward(session, %{damaged: 0.1})
      iex> Exception.message(error)
      "reward: reward term damaged (the rollout has damage, stock) not found"

  | kind of error | cause |
  |---|---|
  | `:not_found` | a decision that is no longer held, see `:hold` of `open/2`, or a term that the rollout does not have |
  | `:mismatch` | one number, in a rollout with several terms |
  | `:non_finite` | a number that is not finite in 32 bits |
  """
  @spec reward(Session.t(), number | %{atom => number} | keyword(number), keyword) ::
          :ok | {:error, Error.t()}
  def reward(session, reward, opts \\ [])

  # Once a frame, so without options none are checked.
  def reward(%Session{ref: ref}, reward, []),
    do: Native.session_reward(ref, nil, numbers!(reward))

  def reward(%Session{ref: ref}, reward, opts) do
    [frame: frame] =
      Options.validate!(opts, frame: [type: {:or, [nil, :pos_integer]}, default: nil])

    Native.session_reward(ref, frame, numbers!(reward))
  end

  def reward(other, _reward, _opts), do: Options.argument!("session", other, "a session")

  defp numbers!(reward) when is_number(reward), do: float!(reward, reward)

  defp numbers!(reward) when is_map(reward) when length(reward) >= 0 do
    for term <- if(is_map(reward), do: Map.to_list(reward), else: reward) do
      case term do
        {name, number} when is_atom(name) and is_number(number) ->
          {Atom.to_string(name), float!(number, reward)}

        _other ->
          refuse(reward)
      end
    end
  end

  defp numbers!(reward), do: refuse(reward)

  defp float!(number, reward) do
    number / 1
  rescue
    # A whole number beyond all floats.
    ArithmeticError -> refuse(reward)
  end

  @spec refuse(term) :: no_return
  defp refuse(reward),
    do: Options.argument!("reward", reward, "a number, or a map of terms to numbers")

  @doc """
  Ends the episode of a recorded session, by the rules of the game (`:terminated`) or by a limit (`:truncated`), and begins
  the next one with an empty memory. `start_link/1` has an example.

  For `:truncated`, `frame` is the frame after the last decision: its value stands for the rest of the episode. Without it
  the value of the last decision does.
  """
  @spec done(Session.t(), :terminated | :truncated, term) :: :ok | {:error, Error.t()}
  def done(session, how, frame \\ nil)

  def done(%Session{} = session, how, frame) when how in [:terminated, :truncated] do
    with {:ok, packed} <- last(session, frame),
         do: Native.session_done(session.ref, how, packed)
  end

  def done(%Session{}, how, _frame),
    do: Options.argument!("how", how, ":terminated or :truncated")

  def done(other, _how, _frame), do: Options.argument!("session", other, "a session")

  defp last(_session, nil), do: {:ok, nil}

  defp last(session, frame) do
    with {:ok, asked} <- Decision.pack(session, frame, []), do: {:ok, elem(asked, 1)}
  end

  @doc """
  Returns figures since the start: `decisions` and segments `received`, and of these `displaced`, `stale`, `misfits` and
  `waiting`; the `version` of the serving's weights (nil before the first), the segments `unsent` to another node, the messages of
  other nodes `refused` because this node did not lead, and the last `error` of new weights, if any. `start_link/1` has an example.
  """
  @spec info(rollout) :: {:ok, map} | {:error, Error.t()}
  def info(rollout), do: ask(rollout, :info, :info)

  @doc false
  # The inbox, the serving and the policy of a rollout, for a run of this node.
  def source(rollout), do: ask(rollout, :source, :learn)

  defp ask(rollout, request, op) do
    Options.server?(rollout) ||
      Options.argument!("rollout", rollout, "the pid or the name of a rollout")

    GenServer.call(rollout, request)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the rollout", deadline_ms: 5_000}
      {:error, %Error{kind: :deadline, op: op, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init(%{learner: learner} = state) do
    if learner, do: Courier.start_link(state.inbox, learner, state.courier, state.unsent)
    {:ok, later(state)}
  end

  defp later(state) do
    Process.send_after(self(), :look, state.poll_ms)
    state
  end

  # The policy is the present one: the serving may have had others since the start.
  @impl true
  def handle_call(:source, _from, state) do
    answer =
      with {:ok, %{policy: policy}} <- Serving.info(state.serving),
           do:
             {:ok,
              %{serving: state.serving, policy: policy, inbox: state.inbox, terms: state.terms}}

    {:reply, answer, state}
  end

  def handle_call(:info, _from, state) do
    answer =
      with {:ok, counts} <- Native.inbox_counts(state.inbox) do
        own = Map.take(state, [:version, :refused, :error])
        {:ok, counts |> Map.put(:unsent, :counters.get(state.unsent, 1)) |> Map.merge(own)}
      end

    {:reply, answer, state}
  end

  def handle_call({:segments, sender, base, first, segments}, _from, state)
      when is_integer(base) and is_integer(first) and is_list(segments),
      do: Nodes.segments(state, sender, base, first, segments)

  def handle_call({:weights, known}, _from, state), do: Nodes.weights(state, known)

  @impl true
  def handle_info(:look, state), do: {:noreply, state |> swap() |> later()}

  # Puts new weights into the serving. One that is busy or restarting gets them at the next look.
  defp swap(%{version: version} = state) do
    with {:ok, {newest, ref}} when newest != version <- Native.inbox_newest(state.inbox),
         {:ok, %{policy: policy}} <- Serving.info(state.serving),
         policy = %Policy{policy | ref: ref},
         # It has the statistics of the run.
         {:ok, %{spec: spec}} <- Policy.info(policy),
         :ok <- Serving.swap(state.serving, %Policy{policy | spec: spec}) do
      %{state | version: newest, error: nil}
    else
      {:error, error} -> Nodes.failed(state, error)
      _same -> state
    end
  end

  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status),
    do:
      Map.replace_lazy(
        status,
        :state,
        &Map.take(&1, [:serving, :terms, :learner, :version, :error])
      )
end
