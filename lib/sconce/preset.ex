defmodule Sconce.Preset do
  alias Sconce.{Device, Error, Figures, Memory, Options, Temporal}
  alias Sconce.Policy.Spec
  alias Sconce.Preset.{Catalogue, Text}

  @moduledoc """
  Named sets of options for a training run, with ExPhil's names and values.

      iex> Sconce.Preset.get(:gpu_standard)
      #Sconce.Preset<gpu_standard · mamba 256x2 · 20 epochs, batch 256, window 60 · cuda · a whole run with everything>
      iex> Sconce.Preset.get(:gpu_standad)
      ** (ArgumentError) unknown preset :gpu_standad, did you mean :gpu_standard?

  `Sconce.Trainer`, `Sconce.Policy.Spec` and `mix sconce.train` accept a preset by its name. A given option overrides the
  preset, and the preset overrides the defaults of Sconce:

      {:ok, run} = Sconce.Trainer.start_link(preset: :quick, corpus: "corpus", out: "run", epochs: 3)

      iex> Sconce.Policy.Spec.new(preset: :production, num_layers: 4)
      #Sconce.Policy.Spec<melee -> mamba 256x4 -> controller(81)>

  A `:loss` that is a list is merged into that of the preset. Another `:backbone` replaces that of the preset, and
  drops all options that the new backbone lacks. If one of the two backbones is `:mlp`, the window is replaced too,
  because a preset of `:mlp` learns from single frames.

  `to_string/1` prints a preset in full, including the values without effect and the reasons:

      iex> :quick |> Sconce.Preset.get() |> to_string() |> String.split("\\n") |> Enum.take(4)
      [
        "quick: to check that everything works",
        "  backbone                :mlp",
        "  hidden_sizes            [32, 32]",
        "  dropout                 0.0"
      ]
      iex> Sconce.Preset.get(:quick).ignored
      [{:max_files, 5, "a run learns from its whole corpus: import that many games"}]

  ## The presets

  #{Text.table()}

  Presets on `cuda` are made for a GPU. Without a GPU, and without `device: :cpu`, a run ends with an error of kind
  `:unavailable`. With too little free memory the run ends with an error of kind `:out_of_memory`.

  ## By card

  `preset: {:gpu, :rtx_3090}` is `:gpu_standard` with the batch and the window that ExPhil's guide recommends for a card:

  #{Text.cards()}

  ## As in effect

  ExPhil's command line changes some values after a preset is read, and its loss and its averages ignore others.
  `preset: {:exphil, :gpu_quick}` has the values with which it trains in fact. They differ from those of the preset
  `:gpu_quick` as follows:

  #{Text.differences()}

  ## ExPhil's values

  Presets have the values with which ExPhil's command line trains, including its defaults: Adam, a constant rate of 1e-4,
  a window every 5 frames. Some values have another name in Sconce, or no effect:

  #{Text.mapping()}

  `hidden_size` is always explicit: ExPhil's temporal backbones have 256, regardless of `hidden_sizes` in its presets.
  Of ExPhil's backbones #{Text.backbones()}. `augment` without probabilities uses ExPhil's defaults: 0.5 for mirror and
  0.3 for noise. A preset has `patience`, `min_delta` and `ema_decay` only if early stopping or EMA is on. The best
  checkpoint is always saved. `precision` is f32, as on ExPhil's command line; the bf16 of its library also rounds
  weights, which are always f32 in Sconce. `Sconce.Config` may set another precision.
  """

  # Bytes of a process that do not depend on the frames of a batch.
  @fixed 150_000_000

  @enforce_keys [:name, :for, :options, :ignored, :memory]
  defstruct @enforce_keys

  @typedoc "Name of a preset, of a preset as in effect, or of a card."
  @type name :: atom | {:exphil | :gpu, atom | String.t()}

  @typedoc """
  `options` of `Sconce.Trainer`, and the `ignored` values: name, value, reason. `memory` is the number of bytes that the
  run needs on a CPU, nil if the options change the model.
  """
  @type t :: %__MODULE__{
          name: name,
          for: String.t(),
          options: keyword,
          ignored: [{atom, term, String.t()}],
          memory: pos_integer | nil
        }

  @doc """
  Returns all presets.

      iex> Sconce.Preset.list() |> hd()
      #Sconce.Preset<quick · mlp 32-32 · 1 epoch, batch 32, window 1 · to check that everything works>
  """
  @spec list() :: [t]
  def list, do: Enum.map(Catalogue.names(), &get/1)

  @doc """
  Returns the names of all presets.

      iex> Enum.take(Sconce.Preset.names(), 3)
      [:quick, :standard, :full_cpu]
  """
  @spec names() :: [atom]
  def names, do: Catalogue.names()

  @doc """
  Returns a preset by its name: an atom, `{:exphil, name}`, `{:gpu, card}`, or text such as `"production"`,
  `"exphil:production"` and `"gpu:rtx_3090"`. Raises `ArgumentError` for an unknown name.

      iex> Sconce.Preset.get("production").options[:window_size]
      60
      iex> Sconce.Preset.get({:exphil, :gpu_quick}).options |> Keyword.take([:lr_schedule, :loss_on])
      [lr_schedule: :cosine_restarts, loss_on: :last]
      iex> Sconce.Preset.get({:gpu, :rtx_3090})
      #Sconce.Preset<gpu:rtx_3090 · mamba 256x2 · 20 epochs, batch 256, window 60 · cuda · a whole run on a card of 24 GB>
  """
  @spec get(name | String.t()) :: t
  def get("exphil:" <> name), do: get({:exphil, name})
  def get("gpu:" <> name), do: get({:gpu, name})

  def get({:exphil, name}) do
    found = known!(name, names())
    new({:exphil, found}, Catalogue.fetch!(found), &Catalogue.in_effect/1)
  end

  def get({:gpu, name}) do
    found = known!(name, Keyword.keys(Catalogue.cards()))
    {memory, own} = Keyword.pop!(Catalogue.cards()[found], :memory)
    preset = :gpu_standard |> get() |> merge(own)
    %{preset | name: {:gpu, found}, for: "a whole run on a card of #{memory} GB"}
  end

  def get({family, _name}), do: Options.known!(family, [:exphil, :gpu], "family of presets")

  def get(name) do
    found = known!(name, names())
    new(found, Catalogue.fetch!(found), &Catalogue.translate/1)
  end

  defp known!(name, names) do
    Enum.find(names, &(&1 == name or Atom.to_string(&1) == name)) ||
      Options.known!(name, names, "preset")
  end

  defp new(name, row, translate) do
    {options, ignored} = translate.(row.values)
    device = if row[:device], do: [device: row.device], else: []

    %__MODULE__{
      name: name,
      for: row.for,
      options: device ++ options,
      ignored: ignored,
      memory: row.megabytes * 1_000_000
    }
  end

  @doc """
  Overrides options of a preset with the given ones.

      iex> preset = Sconce.Preset.merge(Sconce.Preset.get(:production), backbone: :gru, num_layers: 1)
      iex> Keyword.take(preset.options, [:backbone, :hidden_size, :num_layers, :window_size])
      [hidden_size: 256, window_size: 60, backbone: :gru, num_layers: 1]
      iex> List.last(preset.ignored)
      {:expand_factor, 2, "the :gru backbone has no such option"}
  """
  @spec merge(t, keyword) :: t
  def merge(%__MODULE__{options: [_ | _]} = preset, given) do
    Options.keyword!(given)

    {options, ignored} =
      preset.options |> Keyword.drop(unmeant(given)) |> give_way(model_of(given))

    %{
      preset
      | options: Keyword.merge(options, given, &merge_option/3),
        ignored: preset.ignored ++ ignored,
        memory: memory(preset, given)
    }
  end

  # Returns the options of a preset that have no effect beside the given schedule, beside games that are walked, or beside
  # a Spec.
  defp unmeant(given) do
    restarts? = given[:lr_schedule] in [nil, :cosine_restarts]
    cosine? = given[:lr_schedule] in [nil, :cosine]

    [
      restart_period: restarts?,
      restart_mult: restarts?,
      decay_steps: cosine?,
      loss_on: given[:unroll] != :carry,
      sampling: given[:unroll] != :carry,
      action_oversample: given[:unroll] != :carry,
      embedding: given[:spec] == nil
    ]
    |> Enum.reject(fn {_option, meant?} -> meant? end)
    |> Keyword.keys()
  end

  @doc false
  # Returns the options of a Spec: the given ones, and those of the model of the `:preset`.
  @spec model(keyword) :: keyword
  def model(given) do
    case Keyword.pop(given, :preset) do
      {nil, given} ->
        given

      {name, given} ->
        %{options: options} = name |> get() |> merge(given)
        model = [:embedding | model_names(options[:backbone])]
        Keyword.take(options, model ++ Keyword.keys(given))
    end
  end

  @doc """
  Checks whether this machine can run a preset: returns `:ok`, or an error of kind `:unavailable` or `:out_of_memory`
  whose `details` have what the preset `needs`.

      iex> :quick |> Sconce.Preset.get() |> Sconce.Preset.check()
      :ok
  """
  @spec check(t) :: :ok | {:error, Error.t()}
  def check(%__MODULE__{} = preset), do: with({:ok, _device} <- device(preset), do: :ok)

  @doc false
  # Returns the device of a preset, or an error if this machine cannot run the preset.
  def device(preset) do
    with {:ok, device} <- Device.resolve_run(preset.options[:device], needs(preset)),
         :ok <- check_memory(preset, Memory.free()),
         do: {:ok, device}
  end

  @doc false
  def check_memory(%{memory: needed} = preset, free)
      when is_integer(needed) and is_integer(free) and needed > free do
    reason = "needs about #{Figures.size(needed)}, and #{Figures.size(free)} are free"

    details =
      preset
      |> needs()
      |> Map.merge(%{
        reason: reason,
        free: free,
        mend: "a smaller batch_size, more accumulation_steps"
      })

    {:error, %Error{kind: :out_of_memory, op: :train, details: details}}
  end

  def check_memory(_preset, _free), do: :ok

  defp needs(preset) do
    needs = %{device: preset.options[:device] || :cpu, memory: preset.memory}
    %{what: "preset #{inspect(preset.name)}", needs: needs}
  end

  defp merge_option(:loss, preset, given) when is_list(given), do: Keyword.merge(preset, given)
  defp merge_option(_name, _preset, given), do: given

  # Returns the given backbone, the names of its given options, and the options that the preset may still set.
  defp model_of(given) do
    case {given[:spec], given[:backbone]} do
      {%Spec{backbone: {name, options}}, _} ->
        {name, Keyword.keys(options), []}

      {_, nil} ->
        nil

      {_, {name, own}} ->
        said = Keyword.keys(Options.keyword!(own))
        {name, said, model_names(name) -- said}

      {_, name} ->
        {name, [], model_names(name)}
    end
  end

  # Drops options of the preset's model that the given backbone lacks or sets.
  defp give_way(options, nil), do: {options, []}

  defp give_way(options, {backbone, said, open}) do
    names = model_names(options[:backbone]) -- [:window_size]

    {gone, kept} =
      Enum.split_with(options, fn {name, _} -> name in names and name not in open end)

    lost = Keyword.drop(gone, [:backbone | said])
    same? = options[:backbone] == :mlp == (backbone == :mlp)
    kept = if same?, do: kept, else: Keyword.merge(kept, Catalogue.windows(backbone))
    why = "the #{inspect(backbone)} backbone has no such option"
    {kept, for({name, value} <- lost, do: {name, value, why})}
  end

  defp model_names({name, _options}), do: model_names(name)
  defp model_names(name), do: [:backbone | Keyword.keys(Temporal.options(name))]

  # Scales the memory of a step with the frames of a batch; the memory of another model is unknown.
  defp memory(%{options: options, memory: memory}, given) do
    model = [:spec, :embedding] ++ (model_names(options[:backbone]) -- [:window_size])
    here = frames(Keyword.merge(options, given))

    if here && not Enum.any?(model, &Keyword.has_key?(given, &1)),
      do: @fixed + ceil((memory - @fixed) * here / frames(options))
  end

  # Returns the frames of a batch, or nil if a given size is invalid, which is refused later.
  defp frames(options) do
    {batch, window} = {options[:batch_size], options[:window_size]}
    if is_integer(batch) and is_integer(window), do: batch * window
  end

  defimpl Inspect do
    def inspect(preset, _opts), do: "#Sconce.Preset<#{Sconce.Preset.Text.summary(preset)}>"
  end

  defimpl String.Chars do
    def to_string(preset), do: Sconce.Preset.Text.full(preset)
  end
end
