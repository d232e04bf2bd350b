defmodule Sconce.Compat.ExPhil.Source do
  @moduledoc false
  # A policy as ExPhil's agent is given it: a path, a map of parameters and config, or a `Sconce.Policy`.

  alias Sconce.{Device, Error, Policy, Session}
  alias Sconce.Bot.Player
  alias Sconce.Policy.Spec

  require Logger

  # Backbones of ExPhil whose state `:stateful_step` carries.
  @stateful [:gru, :lstm]
  # The name of a backbone of Sconce in ExPhil, where it differs.
  @names %{res_lstm: :deep_res_lstm}

  @enforce_keys [:policy, :backbone, :temporal, :window_size, :queue_depth, :num_delays]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          policy: Policy.t(),
          backbone: atom,
          temporal: boolean,
          window_size: pos_integer,
          queue_depth: pos_integer,
          num_delays: non_neg_integer
        }

  @doc "Reads a policy with the options of a start."
  @spec load(term, keyword) :: {:ok, t} | {:error, Error.t() | {:invalid_policy, term}}
  def load(given, options) do
    with {:ok, policy} <- policy(given, options),
         :ok <- melee(policy.spec),
         {:ok, %{notes: notes}} <- Policy.info(policy),
         do: {:ok, described(policy, notes)}
  end

  defp policy(%Policy{spec: %Spec{}, device: %Device{}} = policy, options) do
    if options[:ablate_prev_action] and previous?(policy.spec),
      do: {:error, unablated("a Sconce.Policy")},
      else: {:ok, policy}
  end

  defp policy(path, options) when is_binary(path) do
    case String.valid?(path) && Policy.load(path, device(options)) do
      false -> {:error, {:invalid_policy, path}}
      {:ok, policy} -> policy(policy, options)
      {:error, %Error{kind: :corrupt}} -> imported(path, options)
      {:error, error} -> {:error, error}
    end
  end

  # The map of ExPhil's loader is the term of its older files.
  defp policy(%{params: params, config: %{} = config} = given, options) when is_map(params) do
    if is_struct(given) or is_struct(config),
      do: {:error, {:invalid_policy, given}},
      else: through_a_file(%{params: params, config: config}, options)
  end

  defp policy(other, _options), do: {:error, {:invalid_policy, other}}

  defp through_a_file(given, options) do
    name = "sconce-#{System.pid()}-#{System.unique_integer([:positive])}.bin"
    path = Path.join(System.tmp_dir() || ".", name)

    try do
      with :ok <- File.write(path, :erlang.term_to_binary(given), [:exclusive]) do
        imported(path, options)
      else
        {:error, reason} ->
          details = %{path: path, reason: reason |> :file.format_error() |> to_string()}
          {:error, %Error{kind: :io, op: :load_policy, details: details}}
      end
    after
      File.rm(path)
    end
  end

  defp imported(path, options) do
    config = if options[:ablate_prev_action], do: [use_prev_action: false], else: []

    with {:ok, policy, _notes} <- Policy.import(path, [config: config] ++ device(options)),
         do: {:ok, policy}
  end

  defp device(options), do: Keyword.take(options[:session], [:device])

  defp previous?(%Spec{embedding: {:melee, options}}),
    do: Keyword.get(options, :previous_action, true)

  defp previous?(_spec), do: false

  defp unablated(got) do
    details = %{what: "ablate_prev_action", expected: "a file or a map of ExPhil", got: got}
    mend = "Sconce.Policy.import(path, config: [use_prev_action: false])"
    %Error{kind: :mismatch, op: :load_policy, details: Map.put(details, :mend, mend)}
  end

  defp melee(spec) do
    if Player.melee?(spec) do
      :ok
    else
      details = %{
        what: "policy",
        expected: "frames of Melee and the heads of a controller",
        got: Spec.summary(spec)
      }

      {:error, %Error{kind: :mismatch, op: :load_policy, details: details}}
    end
  end

  defp described(%Policy{spec: spec} = policy, notes) do
    {:melee, embedding} = spec.embedding
    config = imported_config(notes)
    backbone = backbone(spec.backbone)

    %__MODULE__{
      policy: policy,
      backbone: backbone,
      temporal: Map.get(config, "temporal", backbone != :mlp) and backbone != :mlp,
      window_size: window(notes),
      queue_depth: Keyword.get(embedding, :queue_depth, 1),
      num_delays: Keyword.get(embedding, :num_delays, 0)
    }
  end

  defp imported_config(%{"imported" => %{"config" => %{} = config}}), do: config
  defp imported_config(_notes), do: %{}

  defp window(%{"window_size" => size}) when is_integer(size) and size > 0, do: size
  defp window(_notes), do: 60

  defp backbone({name, _options}), do: backbone(name)
  defp backbone(name), do: Map.get(@names, name, name)

  @doc "Whether sessions carry the state, as `:stateful_step` asks."
  @spec stateful?(t, keyword) :: boolean
  def stateful?(%__MODULE__{} = source, options),
    do: options[:stateful_step] and source.temporal and source.backbone in @stateful

  @doc "Opens a session that decides as ExPhil's agent does. It belongs to the caller."
  @spec open(t, keyword, binary | nil) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(%__MODULE__{policy: policy} = source, options, steering) do
    delay = if source.num_delays > 0, do: [frame_delay: options[:delay_id]], else: []

    Session.open(
      policy,
      [mode: mode(source, options), window_size: source.window_size, logits: true] ++
        [project_out: steering] ++ delay ++ options[:session]
    )
  end

  defp mode(source, options) do
    case {stateful?(source, options), options[:stateful_resync]} do
      {false, _resync} -> :window
      {true, nil} -> :carry
      {true, resync} -> {:resync, resync}
    end
  end

  @doc "Logs that a policy does not carry its state, although `:stateful_step` asks for it."
  @spec warn(t, keyword) :: :ok
  def warn(%__MODULE__{} = source, options) do
    if options[:stateful_step] and not stateful?(source, options),
      do:
        Logger.warning(
          "stateful_step: the backbone #{inspect(source.backbone)} decides by windows, as in ExPhil"
        )

    :ok
  end
end
