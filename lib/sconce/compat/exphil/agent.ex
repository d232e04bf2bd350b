defmodule Sconce.Compat.ExPhil.Agent do
  alias Sconce.{Error, Loaded, Options, Session}
  alias Sconce.Compat.ExPhil.{Answer, Catalogue, Play, Snapshot, Uncertainty}
  alias Sconce.Compat.Melee

  @timeout_ms 5_000
  @warmup_ms 120_000
  # Called by name, because the app may lack them.
  @registry ExPhil.Registry
  @error ExPhil.Error.AgentError

  @moduledoc """
  The process that an app like ExPhil asks for inputs: `ExPhil.Agents.Agent` over a `Sconce.Session`, with its thirteen
  functions, arguments and answers.

  An app changes one line where it calls its agent:

      alias Sconce.Compat.ExPhil.Agent

  Neither ExPhil nor Nx is needed. States are `ExPhil.Bridge.GameState` or `Melee.GameState` (`Sconce.Compat.Melee`). This
  example has a policy of ExPhil's and a state without the library:

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/gru.bin", deterministic: true)
      iex> player = %{x: -30.0, y: 0.0, facing: 1, action: 14, character: 1, percent: 0.0, stock: 4, on_ground: true,
      ...>   nana: nil}
      iex> state = %{__struct__: ExPhil.Bridge.GameState, frame: 7, stage: 32, menu_state: 2, projectiles: [],
      ...>   players: %{1 => player, 2 => %{player | x: 30.0}}}
      iex> {:ok, controller} = Agent.get_controller(agent, state, player_port: 2)
      iex> {is_boolean(controller.button_a), is_float(controller.main_stick.x)}
      {true, true}

  ## Answers

  | function | answer |
  |---|---|
  | `get_controller/3` | `{:ok, controller}`, an `ExPhil.Bridge.ControllerState`, or a map of its fields where the app has no such struct |
  | `get_action/3` | `{:ok, action}`: `buttons`, `main_x`, `main_y`, `c_x`, `c_y`, `shoulder` as *indices* of buckets, and `logits` |
  | the two with confidence | the same and a map of `overall`, `buttons`, `main`, `c` and `shoulder`, 0 to 1 |

  With Nx, the indices are tensors: u8 of `{1, 8}` for the buttons and s32 of `{1}` for the others, and the logits f32 of
  `{1, n}`. Without Nx they are lists and integers.

  A frame number has one decision: a state that comes again, and a frame that `:action_repeat` holds, has the last action,
  and the confidence 0.0 in each part.

  ## Errors

  | answer | cause |
  |---|---|
  | `{:error, %ExPhil.Error.AgentError{reason: :no_policy_loaded}}` | no policy; a `Sconce.Error` of kind `:not_found` where the app has no such struct |
  | `{:error, :not_stateful}` | a snapshot without a policy |
  | `{:error, {:invalid_snapshot, error}}` | a binary that `snapshot_state/1` did not return, or of another policy |
  | `{:error, {:invalid_policy, given}}` | neither a path, nor a policy, nor ExPhil's map |
  | `{:error, {:policy_load_failed, reason}}` | `start_link/1` could not read the policy; the caller is not ended |
  | `{:error, %Sconce.Error{}}` | all others; the memory is unchanged |

  ## Differences from ExPhil

  | ExPhil | here |
  |---|---|
  | `:stateful_step` warns and reads windows for other backbones than GRU and LSTM | the same |
  | `:stateful_resync` counts the frames of its buffer | the state is recomputed at the first frame and each k-th after it |
  | frames that `:action_repeat` holds are missing in the window, and repeated calls count as frames | the window has each frame, and calls do not count |
  | a jump button is released after the choice | it is masked before, which is the same choice of independent heads |
  | the temperature of sampled buttons is 1 | it divides all logits; `deterministic_buttons: true` leaves it to the sticks |
  | a threshold alone has no effect | it raises |
  | hitstun and stages as the bridge passes them on | as a replay has them (`Sconce.Compat.Melee`); `stage_ids: :replay` leaves the stages |
  | `snapshot_state/1` needs `:stateful_step` | every policy has snapshots, with the window |
  | an unknown `:style_tag` is style 0 | an error of kind `:not_found` |
  | `:steer_vector` has no effect on an MLP | it has |
  | `:uncertainty_log` has lines of `get_controller/3`, also for repeated states | a line for each decision, of all four functions |
  | a new game empties the queue of inputs alone | it empties the memory of a policy with a queue; other policies wait for `reset_buffer/1`, as in ExPhil |
  | unknown options are ignored | they raise |

  Options with these values raise:

  | option | accepted | instead |
  |---|---|---|
  #{Catalogue.refused()}

  ## Names

  An atom is registered as ExPhil does, as `{:agent, name}` of the registry `ExPhil.Registry`, if the app has started it;
  `ExPhil.Agents` then finds the agent. Without that registry it is the local name of the process. `{:global, term}` and
  `{:via, module, term}` are names as in `GenServer`.

  ## Options

  #{Catalogue.docs(:start)}
  """

  use Sconce.Server

  @typedoc "The pid or the name of an agent."
  @type agent :: GenServer.server()
  @typedoc "Confidence of a decision, 0 to 1."
  @type confidence :: %{
          overall: float,
          buttons: float,
          main: float,
          c: float,
          shoulder: float
        }

  @doc """
  Starts an agent. Wrong options raise `ArgumentError`.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(frame_delay: 4)
      iex> Agent.get_config(agent).has_policy
      false
      iex> {:error, {:policy_load_failed, error}} = Agent.start_link(policy_path: "missing.bin")
      iex> error.kind
      :not_found
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    options = Catalogue.start!(opts)

    # The caller loads and opens, so that a failure is an answer and not an exit. Then the session is the agent's.
    with {:ok, log} <- Uncertainty.open(options[:uncertainty_log]),
         {:ok, play} <- Play.open(options),
         {:ok, pid} <- started({play, log}, registered(options[:name])),
         :ok <- handed(play, pid),
         do: {:ok, pid}
  end

  defp registered(nil), do: []

  defp registered(name) when is_atom(name) do
    if Process.whereis(@registry),
      do: [name: {:via, Registry, {@registry, {:agent, name}}}],
      else: [name: name]
  end

  defp registered(name), do: [name: name]

  defp started({play, _log} = begun, name) do
    with {:error, _already_started} = refused <- GenServer.start_link(__MODULE__, begun, name) do
      _ = Play.close(play)
      refused
    end
  end

  defp handed(%Play{player: nil}, _pid), do: :ok

  # An agent without its session could not decide.
  defp handed(%Play{player: player} = play, pid) do
    with {:error, _error} = failed <- Session.transfer(player.session, pid) do
      stop(pid)
      _ = Play.close(play)
      failed
    end
  end

  defp stop(pid) do
    GenServer.stop(pid)
  catch
    :exit, _ended -> :ok
  end

  @doc """
  Returns the action of a game state, as indices of buckets. The moduledoc has its shapes.

  #{Catalogue.docs(:ask)}

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link([])
      iex> {:error, error} = Agent.get_action(agent, %{})
      iex> Exception.message(error)
      "get_action: a policy not found (to mend it: load_policy/2)"
  """
  @spec get_action(agent, term, keyword) :: {:ok, map} | {:error, term}
  def get_action(agent, state, opts \\ []) do
    with {:ok, action, _confidence} <- decide(agent, state, opts),
         do: {:ok, Answer.choices(action)}
  end

  @doc """
  Returns the action of a game state, and its confidence. Options are those of `get_action/3`.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/mlp_small.bin")
      iex> {:error, error} = Agent.get_action_with_confidence(agent, %{frame: 1})
      iex> error.kind
      :mismatch
  """
  @spec get_action_with_confidence(agent, term, keyword) ::
          {:ok, map, confidence} | {:error, term}
  def get_action_with_confidence(agent, state, opts \\ []) do
    with {:ok, action, confidence} <- decide(agent, state, opts),
         do: {:ok, Answer.choices(action), confidence}
  end

  @doc """
  Returns the controller input of a game state. Options are those of `get_action/3`.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/mlp_small.bin")
      iex> state = %{__struct__: ExPhil.Bridge.GameState, frame: 7, stage: 32, menu_state: 2, players: %{}}
      iex> {:error, error} = Agent.get_controller(agent, state, player_port: 1)
      iex> Exception.message(error)
      "frame: player at port 1 (the game has ports ) not found"
  """
  @spec get_controller(agent, term, keyword) :: {:ok, map} | {:error, term}
  def get_controller(agent, state, opts \\ []) do
    with {:ok, action, _confidence} <- decide(agent, state, opts),
         do: {:ok, Melee.controller(action, :exphil)}
  end

  @doc """
  Returns the controller input of a game state, and its confidence. Options are those of `get_action/3`.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/mlp_small.bin", deterministic: true)
      iex> player = %{x: -30.0, y: 0.0, facing: 1, action: 14, character: 1, percent: 0.0, stock: 4, on_ground: true}
      iex> state = %{__struct__: ExPhil.Bridge.GameState, frame: 7, stage: 32, menu_state: 2, projectiles: [],
      ...>   players: %{1 => player, 2 => %{player | x: 30.0}}}
      iex> {:ok, controller, confidence} = Agent.get_controller_with_confidence(agent, state)
      iex> {:ok, again, repeated} = Agent.get_controller_with_confidence(agent, state)
      iex> {again == controller, confidence.overall > 0.0, repeated.overall}
      {true, true, 0.0}
  """
  @spec get_controller_with_confidence(agent, term, keyword) ::
          {:ok, map, confidence} | {:error, term}
  def get_controller_with_confidence(agent, state, opts \\ []) do
    with {:ok, action, confidence} <- decide(agent, state, opts),
         do: {:ok, Melee.controller(action, :exphil), confidence}
  end

  defp decide(agent, state, opts) do
    asked = Options.validate!(opts, Catalogue.schema(:ask))
    ask(agent, {:decide, state, asked}, :get_action)
  end

  @doc """
  Takes another policy in place of the present one: a path, a `Sconce.Policy` or ExPhil's map. A policy that cannot be
  read leaves the agent as it is.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link([])
      iex> Agent.load_policy(agent, "test/golden/exphil/mamba.bin")
      :ok
      iex> Agent.get_config(agent).backbone
      :mamba
      iex> Agent.load_policy(agent, %{invalid: true})
      {:error, {:invalid_policy, %{invalid: true}}}
  """
  @spec load_policy(agent, Sconce.Policy.t() | Path.t() | map) :: :ok | {:error, term}
  def load_policy(agent, policy), do: ask(agent, {:load, policy}, :load_policy, :infinity)

  @doc """
  Returns the settings and the policy in words.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/gru.bin", stateful_step: true)
      iex> config = Agent.get_config(agent)
      iex> {config.backbone, config.temporal, config.window_size, config.stateful_step_active}
      {:gru, true, 20, true}
      iex> config |> Map.keys() |> Enum.sort()
      [:backbone, :buffer_size, :deterministic, :frame_delay, :has_policy, :incremental_active, :incremental_step, :name,
       :stateful_step, :stateful_step_active, :temperature, :temporal, :use_incremental, :window_size]
  """
  @spec get_config(agent) :: map | {:error, Error.t()}
  def get_config(agent), do: ask(agent, :get_config, :get_config)

  @doc """
  Changes settings.

  #{Catalogue.docs(:configure)}

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link([])
      iex> Agent.configure(agent, deterministic: true, temperature: 0.7)
      :ok
      iex> Agent.get_config(agent).temperature
      0.7
  """
  @spec configure(agent, keyword) :: :ok | {:error, Error.t()}
  def configure(agent, opts) do
    settings = Options.validate!(opts, Catalogue.schema(:configure))
    ask(agent, {:configure, settings}, :configure)
  end

  @doc """
  Empties the memory. Call it before a game.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/gru.bin")
      iex> Agent.reset_buffer(agent)
      :ok
  """
  @spec reset_buffer(agent) :: :ok | {:error, Error.t()}
  def reset_buffer(agent), do: ask(agent, :reset_buffer, :reset_buffer)

  @doc """
  Makes one decision that is not remembered, and returns the milliseconds that it took. A first decision takes as long as
  others, so a call is not needed.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/gru.bin")
      iex> Agent.warmed_up?(agent)
      false
      iex> {:ok, ms} = Agent.warmup(agent)
      iex> {is_integer(ms), Agent.warmed_up?(agent)}
      {true, true}
  """
  @spec warmup(agent) :: {:ok, non_neg_integer} | {:error, term}
  def warmup(agent), do: ask(agent, :warmup, :warmup, @warmup_ms)

  @doc """
  Returns whether the policy has made a decision. `warmup/1` has an example.
  """
  @spec warmed_up?(agent) :: boolean | {:error, Error.t()}
  def warmed_up?(agent), do: ask(agent, :warmed_up?, :warmed_up?)

  @doc """
  Returns the memory as a binary: the state or the window of the policy, the last action and the jump cooldown.

      iex> alias Sconce.Compat.ExPhil.Agent
      iex> {:ok, agent} = Agent.start_link(policy_path: "test/golden/exphil/gru.bin", stateful_step: true)
      iex> {:ok, snapshot} = Agent.snapshot_state(agent)
      iex> Agent.restore_state(agent, snapshot)
      :ok
      iex> {:error, {:invalid_snapshot, error}} = Agent.restore_state(agent, "no snapshot")
      iex> Exception.message(error)
      "restore_state: snapshot: not a snapshot of Sconce.Compat.ExPhil.Agent"
  """
  @spec snapshot_state(agent) :: {:ok, binary} | {:error, :not_stateful | Error.t()}
  def snapshot_state(agent), do: ask(agent, :snapshot_state, :snapshot_state)

  @doc """
  Restores the memory of a snapshot: the same states then lead to the same actions. A binary of another policy, mode or
  window, or one that was changed, leaves the memory as it is. `snapshot_state/1` has an example.
  """
  @spec restore_state(agent, binary) ::
          :ok | {:error, :not_stateful | {:invalid_snapshot, Error.t()} | Error.t()}
  def restore_state(agent, blob) when is_binary(blob),
    do: ask(agent, {:restore_state, blob}, :restore_state)

  def restore_state(_agent, other), do: Options.argument!("snapshot", other, "a binary")

  defp ask(agent, request, op, timeout \\ @timeout_ms) do
    Options.server?(agent) || Options.argument!("agent", agent, "the pid or the name of an agent")
    GenServer.call(agent, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the agent", deadline_ms: timeout}
      {:error, %Error{kind: :deadline, op: op, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init({%Play{} = play, log}) do
    # The lines of a log are written when a supervisor ends the agent.
    if log, do: Process.flag(:trap_exit, true)
    {:ok, %{play: play, log: log}}
  end

  @impl true
  def handle_call({:decide, _state, _asked}, _from, %{play: %{player: nil}} = server),
    do: {:reply, unarmed(server, :get_action), server}

  def handle_call({:decide, state, asked}, _from, %{play: play} = server) do
    case Play.decide(play, state, asked) do
      {:ok, action, confidence, own?, play} ->
        log = if own?, do: Uncertainty.add(server.log, play.frame, confidence), else: server.log
        {:reply, {:ok, action, confidence}, %{server | play: play, log: log}}

      {:error, error} ->
        {:reply, {:error, error}, server}
    end
  end

  def handle_call({:load, policy}, _from, server),
    do: server.play |> Play.load(policy) |> changed(server)

  def handle_call(:get_config, _from, server), do: {:reply, Play.config(server.play), server}

  def handle_call({:configure, settings}, _from, %{play: play} = server) do
    options = Keyword.merge(play.options, settings)

    if Catalogue.thresholds?(options),
      do: changed({:ok, %{play | options: options}}, server),
      else: {:reply, {:error, alone(settings)}, server}
  end

  def handle_call(:reset_buffer, _from, server),
    do: server.play |> Play.reset() |> changed(server)

  def handle_call(:warmup, _from, %{play: %{player: nil}} = server),
    do: {:reply, unarmed(server, :warmup), server}

  def handle_call(:warmup, _from, server) do
    case Play.warm(server.play) do
      {:ok, ms, play} -> {:reply, {:ok, ms}, %{server | play: play}}
      {:error, error} -> {:reply, {:error, error}, server}
    end
  end

  def handle_call(:warmed_up?, _from, server), do: {:reply, server.play.warm, server}

  def handle_call(:snapshot_state, _from, %{play: %{player: nil}} = server),
    do: {:reply, {:error, :not_stateful}, server}

  def handle_call(:snapshot_state, _from, server),
    do: {:reply, Snapshot.take(server.play), server}

  def handle_call({:restore_state, _blob}, _from, %{play: %{player: nil}} = server),
    do: {:reply, {:error, :not_stateful}, server}

  def handle_call({:restore_state, blob}, _from, server) do
    case Snapshot.restore(server.play, blob) do
      {:ok, play} -> {:reply, :ok, %{server | play: play}}
      {:error, error} -> {:reply, {:error, {:invalid_snapshot, error}}, server}
    end
  end

  defp changed({:ok, play}, server), do: {:reply, :ok, %{server | play: play}}
  defp changed({:error, reason}, server), do: {:reply, {:error, reason}, server}

  defp alone(settings) do
    expected = "both thresholds, or none"
    details = %{what: "configure", expected: expected, got: inspect(settings)}
    %Error{kind: :mismatch, op: :configure, details: details}
  end

  # An app of ExPhil matches on its own error.
  defp unarmed(%{play: play}, op) do
    if Loaded.loaded?(@error) and function_exported?(@error, :new, 2) do
      {:error, apply(@error, :new, [:no_policy_loaded, [agent: play.options[:name]]])}
    else
      details = %{what: "a policy", mend: "load_policy/2"}
      {:error, %Error{kind: :not_found, op: op, details: details}}
    end
  end

  @impl true
  def terminate(_reason, server) do
    Uncertainty.flush(server.log)
    :ok
  end

  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status),
    do: Map.replace_lazy(status, :state, &%{config: Play.config(&1.play)})
end
