defmodule Sconce.Rollout do
  alias Sconce.{Error, Native, Options, Policy, Serving, Session}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
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
  The policy needs a value (`value_head: true`), and sessions draw from the policy as it is: an option that changes the
  draw is refused.

  ## Lag

  Games go on while the run learns, so a segment may be of older weights. Its recorded likelihoods count, and the ratio to
  them is clipped. A segment with a decision more than `:max_lag` updates old is dropped and counted. `figures` of an update
  have `lag` (mean over decisions, in updates), and the number of segments that were `stale`, `displaced` by newer ones in a
  full queue, or `misfits`, and that are `waiting`.

  ## Other nodes

      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, learner: {MyApp.Rollout, :"learner@host"})

  Segments go there as binaries, and weights come back. A full queue of the learner is asked again later, while games go
  on and new segments displace the oldest ones. A node that dies loses its unfinished segments. One that was cut off for a
  while sends its segments when it is back, and the learner counts those that are too old.

  ## Options

  #{Options.docs(@start)}
  """

  use Sconce.Server, restart: :transient

  @typedoc "The pid or the name of a rollout, also on another node."
  @type rollout :: GenServer.server()

  # Segments of one message to another node.
  @at_once 64
  # Milliseconds for which a call to another node waits.
  @call_ms 10_000

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

    learner == nil or Options.server?(learner) ||
      Options.argument!("option :learner", learner, "a pid, a name or {name, node}")

    with {:ok, %{policy: policy, pid: pid}} <- Serving.info(options[:serving]),
         :ok <- here(pid),
         {:ok, inbox} <- Native.inbox_new(Spec.to_native(policy.spec), options[:capacity]) do
      state = %{
        serving: options[:serving],
        policy: policy,
        inbox: inbox,
        learner: learner,
        poll_ms: options[:poll_ms],
        version: nil,
        bytes: nil,
        unsent: []
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

  A decision that is no longer held is an error of kind `:not_found`: see `:hold` of `open/2`. A number that is not finite
  in 32 bits is one of kind `:non_finite`.
  """
  @spec reward(Session.t(), number, keyword) :: :ok | {:error, Error.t()}
  def reward(session, reward, opts \\ [])

  def reward(%Session{ref: ref}, reward, opts) when is_number(reward) do
    [frame: frame] =
      Options.validate!(opts, frame: [type: {:or, [nil, :pos_integer]}, default: nil])

    Native.session_reward(ref, frame, float!(reward))
  end

  def reward(%Session{}, reward, _opts), do: refuse(reward)
  def reward(other, _reward, _opts), do: Options.argument!("session", other, "a session")

  defp float!(reward) do
    reward / 1
  rescue
    # A whole number beyond all floats.
    ArithmeticError -> refuse(reward)
  end

  @spec refuse(term) :: no_return
  defp refuse(reward), do: Options.argument!("reward", reward, "a number")

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
  `waiting`; the `version` of the serving's weights (nil before the first), and the segments `unsent` to another node.
  `start_link/1` has an example.
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
    :exit, _gone -> {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init(state), do: {:ok, later(state)}

  defp later(state) do
    Process.send_after(self(), :look, state.poll_ms)
    state
  end

  @impl true
  def handle_call(:source, _from, state),
    do: {:reply, {:ok, Map.take(state, [:serving, :policy, :inbox])}, state}

  def handle_call(:info, _from, state) do
    with {:ok, counts} <- Native.inbox_counts(state.inbox) do
      own = %{version: state.version, unsent: length(state.unsent)}
      {:reply, {:ok, Map.merge(counts, own)}, state}
    else
      error -> {:reply, error, state}
    end
  end

  # From another node: segments, of which some may find the queue full.
  def handle_call({:segments, segments}, _from, state) when is_list(segments),
    do: {:reply, Native.inbox_offer(state.inbox, segments), state}

  # From another node: the weights, unless it has them.
  def handle_call({:weights, version}, _from, %{version: version} = state),
    do: {:reply, :known, state}

  def handle_call({:weights, _other}, _from, state) do
    state = packed(state)
    {:reply, state.bytes || :known, state}
  end

  # The bytes of the present weights are made once for all nodes.
  defp packed(%{bytes: nil} = state) do
    with {:ok, {_version, ref}} <- Native.inbox_newest(state.inbox),
         {:ok, bytes} <- Call.run(&Native.policy_bytes(ref, &1)),
         do: %{state | bytes: bytes},
         else: (_none -> state)
  end

  defp packed(state), do: state

  @impl true
  def handle_info(:look, state), do: {:noreply, state |> exchange() |> swap() |> later()}

  # Puts new weights into the serving.
  defp swap(%{version: version} = state) do
    case Native.inbox_newest(state.inbox) do
      {:ok, {newest, ref}} when newest != version ->
        policy = %Policy{state.policy | ref: ref}

        # A serving that is busy or restarting gets the weights at the next look.
        case Serving.swap(state.serving, policy) do
          :ok -> %{state | version: newest, bytes: nil}
          {:error, _error} -> state
        end

      _same ->
        state
    end
  end

  # Sends segments to the learner's node and gets its weights. A node that is cut off keeps its segments.
  defp exchange(%{learner: nil} = state), do: state

  defp exchange(state) do
    state |> weights() |> segments()
  catch
    :exit, _cut_off -> state
  end

  defp weights(state) do
    with bytes when is_binary(bytes) <-
           GenServer.call(state.learner, {:weights, state.version}, @call_ms),
         {:ok, ref} <- Call.run(&Native.policy_of_bytes(&1, bytes)),
         do: Native.inbox_publish(state.inbox, ref)

    state
  end

  defp segments(state) do
    segments =
      case state.unsent do
        [] -> state.inbox |> Native.inbox_take(@at_once) |> elem(1)
        unsent -> unsent
      end

    send_to(segments, state)
  end

  defp send_to([], state), do: state

  # A call that fails leaves the segments unsent.
  defp send_to(segments, state) do
    case GenServer.call(state.learner, {:segments, segments}, @call_ms) do
      {:ok, taken} -> %{state | unsent: Enum.drop(segments, taken)}
      {:error, _error} -> %{state | unsent: segments}
    end
  catch
    :exit, _cut_off -> %{state | unsent: segments}
  end

  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status),
    do: Map.replace_lazy(status, :state, &Map.take(&1, [:serving, :learner, :version]))
end
