defmodule Sconce.Preset.Text do
  @moduledoc false
  # Formats presets.

  alias Sconce.{Figures, Temporal}
  alias Sconce.Policy.Spec
  alias Sconce.Preset.Catalogue
  alias Sconce.Trainer.Table

  @doc "A preset in one line."
  def summary(%{options: options} = preset) do
    Enum.join([name(preset.name), model(options), run(options), preset.for], " · ")
  end

  @doc "A preset in full: each option, then the values without effect."
  def full(%{name: name, for: what, options: options, ignored: ignored}) do
    {loss, options} = Keyword.pop(options, :loss, [])
    options = for {name, value} <- options, do: row(name, written(value))
    ignored = for value <- ignored, do: row("no effect", ignored(value))
    Enum.join(["#{name(name)}: #{what}\n", options, loss(loss), ignored])
  end

  @doc "The name of a preset as text, such as `exphil:quick`."
  def name({kind, name}), do: "#{kind}:#{name}"
  def name(name), do: to_string(name)

  @doc "Formats a value without effect, with the reason."
  def ignored({name, value, why}), do: "#{name} #{written(value)}: #{why}"

  @doc "The presets as a Markdown table."
  def table do
    head = ["preset", "purpose", "model", "epochs, batch, window", "rate", "device", "memory"]
    rows = Enum.map(Catalogue.names(), &cells(&1, Catalogue.fetch!(&1)))
    Enum.map_join([head, List.duplicate("---", length(head)) | rows], "\n", &line/1)
  end

  @doc "The recommendations for cards as a Markdown table."
  def cards do
    head = ["card", "memory", "batch", "window"]

    rows =
      for {name, own} <- Catalogue.cards() do
        ["`#{inspect(name)}`", "#{own[:memory]} GB", own[:batch_size], own[:window_size]]
      end

    Enum.map_join([head, List.duplicate("---", length(head)) | rows], "\n", &line/1)
  end

  @doc "The differences between presets and the same presets as in effect, as a Markdown table."
  def differences do
    head = ["option", "preset", "as in effect", "presets"]
    names = Catalogue.names()

    rows =
      for(name <- names, difference <- differences(name), do: {difference, name})
      |> Enum.group_by(&elem(&1, 0), &elem(&1, 1))
      |> Enum.sort_by(fn {{option, _from, to}, found} -> {-length(found), option, inspect(to)} end)
      |> Enum.map(fn {{option, from, to}, found} ->
        [option, "`#{written(from)}`", "`#{written(to)}`", which(found, names)]
      end)

    Enum.map_join([head, List.duplicate("---", length(head)) | rows], "\n", &line/1)
  end

  defp which(all, all), do: "all"
  defp which(found, _all), do: Enum.map_join(found, ", ", &"`#{inspect(&1)}`")

  # Returns each option with another value: its name, its value in the preset and its value in effect.
  defp differences(name) do
    values = Catalogue.fetch!(name).values
    {preset, _ignored} = Catalogue.translate(values)
    {effect, _ignored} = Catalogue.in_effect(values)
    {from, to} = {flat(preset), flat(effect)}

    for option <- Enum.uniq(Keyword.keys(to) ++ Keyword.keys(from)),
        from[option] != to[option],
        do: {"`#{option}`", value(from, option), value(to, option)}
  end

  defp flat(options) do
    {loss, options} = Keyword.pop!(options, :loss)
    options ++ loss
  end

  # Returns the default of an option that a preset does not set.
  defp value(options, option) do
    defaults = [embedding: :melee] ++ Table.schema() ++ Table.group(:loss)

    Keyword.get_lazy(options, option, fn ->
      case defaults[option] do
        spec when is_list(spec) -> spec[:default]
        default -> default
      end
    end)
  end

  @doc "Returns the values that have another name or no effect in Sconce, as a Markdown table."
  def mapping do
    rows =
      for {name, to} <- Catalogue.mapping(), to != {:option, name}, do: ["`#{name}`", goes(to)]

    Enum.map_join([["ExPhil", "Sconce"], ["---", "---"] | rows], "\n", &line/1)
  end

  @doc "Returns the backbones with another name in Sconce, as a sentence."
  def backbones do
    Catalogue.backbones()
    |> Enum.map_join(", ", fn {name, own} -> "`#{inspect(name)}` is `#{inspect(own)}`" end)
  end

  defp cells(name, row) do
    {options, _ignored} = Catalogue.translate(row.values)
    size = "#{options[:epochs]}, #{options[:batch_size]}, #{options[:window_size]}"
    rate = "#{options[:learning_rate]} #{options[:lr_schedule]}"
    memory = Figures.size(row.megabytes * 1_000_000)
    ["`#{inspect(name)}`", row.for, model(options), size, rate, row[:device] || :cpu, memory]
  end

  defp line(cells), do: "| #{Enum.join(cells, " | ")} |"

  defp goes({:option, option}), do: "`#{option}`"
  defp goes({:loss, name}), do: "`#{name}` of `loss`"
  defp goes({:nothing, why}), do: "no effect: #{why}"

  defp model(options) do
    case {options[:spec], options[:backbone]} do
      {%Spec{backbone: backbone}, _} -> Spec.backbone_text(backbone)
      {_, {name, own}} -> backbone(name, Keyword.merge(own, options))
      {_, name} -> backbone(name, options)
    end
  end

  defp backbone(name, options) do
    schema = Temporal.options(name, options[:compat])
    defaults = for {option, spec} <- schema, do: {option, spec[:default]}
    Spec.backbone_text({name, Keyword.merge(defaults, options)})
  end

  defp run(options) do
    epochs = if options[:epochs] == 1, do: "1 epoch", else: "#{options[:epochs]} epochs"
    text = "#{epochs}, batch #{options[:batch_size]}, window #{options[:window_size]}"
    if options[:device], do: "#{text} · #{options[:device]}", else: text
  end

  defp loss(:plain), do: row("loss", ":plain")
  defp loss(options), do: for({name, value} <- options, do: row("loss #{name}", written(value)))

  # Prints a list of sizes as numbers, never as a charlist.
  defp written(value), do: inspect(value, charlists: :as_lists)

  defp row(name, text), do: "  #{String.pad_trailing("#{name}", 24)}#{text}\n"
end
