defmodule Sconce.Compat do
  alias Sconce.{Device, Error, Native, Options, Policy}
  alias Sconce.Compat.Origin
  alias Sconce.Native.Call

  @import [
            from: [
              type: {:in, [nil, :exphil, :axon, :safetensors]},
              default: nil,
              doc:
                "What the file must be: an export, a training checkpoint or a moving average of ExPhil (`:exphil`), " <>
                  "parameters alone (`:axon`), or Edifice's safetensors. `nil` accepts each of them."
            ],
            config: [
              type: :any,
              default: [],
              doc:
                "Values of ExPhil's config, a keyword list or a map, which replace those of the file; or the path " <>
                  "of an export that has the config. A file of parameters alone needs it."
            ],
            initial_state: [
              type: {:in, [:drawn, :zero]},
              default: :drawn,
              doc:
                "State of LSTM and GRU at the start of a window: drawn from the keys in the file, as Axon does, or zero."
            ],
            trust: [
              type: :boolean,
              default: false,
              doc:
                "Accepts a file with funs, processes or references in it. They are skipped, never called or created."
            ]
          ] ++ Device.option()

  # Keys of a config of ExPhil that describe a policy.
  @keys ~w(axis_buckets shoulder_buckets embed_size hidden_sizes hidden_size dropout temporal backbone window_size)a ++
          ~w(num_heads head_dim num_layers state_size expand_factor conv_size use_prev_action queue_depth)a ++
          ~w(with_delay_id attention_every chunk_size activation axis_size kmeans_centers scan_mode training_mode)a

  @moduledoc """
  Policies of ExPhil, Edifice and Axon: `Sconce.Policy.import/2` reads them, and `Sconce.Policy.export/3` writes them.

  ## Files

  | file | `:from` | contents |
  |---|---|---|
  | `*_policy.bin`, since July 2026 | `:exphil` | config and parameters |
  | `*_policy.bin` before, one Erlang term | `:exphil` | config and parameters |
  | `*.axon`, a training checkpoint | `:exphil` | config, parameters, and an optimiser that is not read |
  | a moving average (`EMA.serialize`) | `:exphil` | parameters |
  | `Nx.serialize/2` or `:erlang.term_to_binary/1` of parameters | `:axon` | parameters |
  | Edifice's `export_safetensors` | `:safetensors` | parameters |

  Parameters may be 16, 32 or 64 bits wide; weights have 32. Nx is not needed. Names in a file stay text, so no atom is
  created, and nothing in a file is called. Sizes are compared with the length of the file before memory is reserved.

  ## Policies

  | ExPhil | Sconce |
  |---|---|
  | `mlp`, or any backbone with `temporal: false` | `:mlp`, with the norms and skips that the file has |
  | `lstm`, `gru` | `:lstm`, `:gru`, with norms whose eps is 1e-6, and the initial states that Axon draws |
  | `min_gru`, `min_lstm` | `:min_gru`, `:min_lstm` |
  | `mamba`, `mamba_2` and `mamba_ssd` | `{:mamba, compat: :exphil}`; `{:mamba_2, compat: :exphil}` for windows of at most 32 frames |
  | `sliding_window`, `attention` | `{:sliding_window, compat: :exphil}`, in windows only |
  | `lstm_hybrid` | `{:lstm_hybrid, compat: :exphil}` |
  | `gated_ssm`, `jamba` | `{:gated_ssm, compat: :exphil}`, `{:jamba, compat: :exphil}`, in windows only |
  | `deep_res_lstm` | `{:res_lstm, compat: :exphil}` |

  A backbone "in windows only" depends on the place of a frame in its window: sessions play it with `mode: :window`.

  The embedding is `{:melee, layout: :packed}`, the heads are independent. A policy with `use_prev_action: false` has
  `previous_action: false`: the place of its previous action holds zeros.

  Refused by name: sticks of K-means, autoregressive heads of ExPhil, other bucket counts than 16 and 4, other activations
  than relu, layers that the config does not describe.

  ## In play

  ExPhil asks with the last `window_size` frames of its config, which is `"window_size"` in the notes of `Sconce.Policy.info/1`.
  `Sconce.Session.open(policy, mode: :window, window_size: window)` does the same. Without `:window_size` a session reads 60 frames,
  and decides otherwise.
  """

  @doc false
  def import_options, do: @import

  @doc false
  @spec import(Path.t(), keyword) :: {:ok, Policy.t(), [String.t()]} | {:error, Error.t()}
  def import(path, opts) do
    opts = Options.validate!(opts, @import)
    {config, config_of} = config!(opts[:config])

    asked = %{
      from: opts[:from],
      config: config,
      config_of: config_of,
      zero_state: opts[:initial_state] == :zero,
      trust: opts[:trust]
    }

    path = Options.path!(path)

    with {:ok, device} <- Device.resolve(opts[:device]),
         {:ok, {ref, notes}} <- Native.policy_import(path, asked),
         {:ok, policy} <- Policy.Placement.place(ref, device) do
      {:ok, policy, notes}
    else
      {:error, error} -> {:error, Origin.mend(error, path)}
    end
  end

  defp config!(path) when is_binary(path), do: {%{}, Options.path!(path)}

  defp config!(config) do
    if (is_map(config) and not is_struct(config)) or Keyword.keyword?(config) do
      for {key, _value} <- config, do: Options.known!(key, @keys, "value of a config")
      {Map.new(config), nil}
    else
      Options.argument!("config", config, "a keyword list, a map or the path of an export")
    end
  end

  @doc false
  @spec export(Policy.t(), :axon | :safetensors, Path.t() | nil) ::
          {:ok, binary | nil, [String.t()]} | {:error, Error.t()}
  def export(%{ref: ref}, format, path) when format in [:axon, :safetensors] do
    path = path && Options.path!(path)

    with {:ok, {bytes, notes}} <- Call.run(&Native.policy_export(ref, &1, format, path)),
         do: {:ok, bytes, notes}
  end

  def export(_policy, other, _path) do
    Options.known!(other, [:axon, :safetensors], "format of an export")
  end

  @doc """
  Compares the logits of a policy with recorded ones, and returns the largest difference of each head.

  The file is in safetensors: `x`, `{n, window, width}`, embedded frames, and `logits.HEAD`, `{n, ..}`, the logits of the
  last frame of each window, both in 32-bit floats. `most` is the largest recorded logit.

      iex> {:ok, policy, _notes} = Sconce.Policy.import("test/golden/exphil/gru.bin")
      iex> {:ok, compared} = Sconce.Compat.compare(policy, "test/golden/exphil/gru.answers.safetensors")
      iex> {compared.windows, compared.frames, Enum.all?(compared.heads, &(&1.difference < 1.0e-5))}
      {4, 20, true}

  Kinds of error: `:not_found`, the file or a tensor does not exist; `:corrupt`, the file is not in safetensors;
  `:mismatch`, a tensor has another shape or type.
  """
  @spec compare(Policy.t(), Path.t()) ::
          {:ok,
           %{
             windows: pos_integer,
             frames: pos_integer,
             heads: [%{head: String.t(), difference: float, most: float}]
           }}
          | {:error, Error.t()}
  def compare(%{ref: ref}, path) do
    path = Options.path!(path)

    with {:ok, {windows, frames, heads}} <- Call.run(&Native.policy_compare(ref, &1, path)) do
      heads =
        for {head, difference, most} <- heads,
            do: %{head: head, difference: difference, most: most}

      {:ok, %{windows: windows, frames: frames, heads: heads}}
    end
  end
end
