defmodule Sconce.Trainer.Switches do
  @moduledoc false
  # A schema of options as switches of a command line: `batch_size` is `--batch-size`.

  alias Sconce.{Options, Policy, Temporal}
  alias Sconce.Trainer.Settings

  # Parts of a Spec that a command line can say. Embedding and heads of a corpus of vectors are its
  # own; of replays these choose among what there is.
  @spec_schema [
    embedding: [
      type: {:in, [:melee, :packed]},
      doc: "Of replays: ids in trained tables, or the 288 plain numbers."
    ],
    backbone: [type: {:in, Temporal.backbones()}, doc: "What remembers."],
    heads: [type: {:in, [:independent, :autoregressive]}, doc: "Of the controller."],
    heads_kind: [type: {:in, [:independent, :autoregressive]}, doc: "Of a corpus' own heads."],
    axis_buckets: [type: :pos_integer, doc: "Steps of a stick's axis."],
    shoulder_buckets: [type: :pos_integer, doc: "Steps of the shoulder."],
    head_hidden_size: [type: :pos_integer, doc: "Hidden layer of a head."],
    stream_size: [type: :pos_integer, doc: "Residual stream of autoregressive heads."],
    prior: [type: :boolean, doc: "Adds log P(action | previous action) to the logits."]
  ]

  @doc "The schema of the Spec's switches, those of every backbone among them."
  def spec_schema do
    backbones = Enum.flat_map(Temporal.backbones(), &Temporal.options/1)
    # A default would claim to be given.
    @spec_schema ++
      for(
        {name, spec} <- Enum.uniq_by(backbones, &elem(&1, 0)),
        do: {name, Keyword.delete(spec, :default)}
      )
  end

  @doc "The schema as the lines of a task's documentation."
  def docs(schema) do
    Enum.map_join(schema, "\n", fn {name, spec} ->
      default = if spec[:default] in [nil, []], do: "", else: " (#{text(spec[:default])})"
      "  * `#{switch(name)}` - #{spec[:doc]}#{default}"
    end)
  end

  @doc """
  Options and the other arguments. Raises `ArgumentError` for a switch that is not in the schema,
  with the nearest that is, and for text that cannot be its value.
  """
  def parse!(argv, schema) do
    strict =
      for {name, spec} <- schema,
          do: {name, if(spec[:type] == :boolean, do: :boolean, else: :string)}

    {given, rest, invalid} = OptionParser.parse(argv, strict: strict)
    Enum.each(invalid, &refuse!(&1, schema))

    {for({name, text} <- given, do: {name, value!(name, text, schema[name][:type])}), rest}
  end

  @doc "Options of `Sconce.Trainer.start_link/1` from those of a command line."
  def training(opts) do
    {loss, opts} = Keyword.split(opts, Keyword.keys(Settings.schema(:loss)))
    {kind, opts} = Keyword.pop(opts, :loss)

    if kind == :plain and loss != [] do
      raise ArgumentError, "#{switch(loss |> hd() |> elem(0))} does not go with --loss plain"
    end

    opts
    |> Keyword.put(:loss, if(kind == :plain, do: :plain, else: loss))
    |> Keyword.replace(:embedding, embedding(opts[:embedding]))
  end

  defp embedding(:packed), do: {:melee, layout: :packed}
  defp embedding(other), do: other

  @doc "`--batch-size` of `:batch_size`."
  def switch(name), do: "--" <> (name |> to_string() |> String.replace("_", "-"))

  defp refuse!({switch, value}, schema) do
    known = Enum.map(schema, fn {name, _spec} -> switch(name) end)

    cond do
      switch in known and value == nil -> raise ArgumentError, "#{switch} needs a value"
      switch in known -> raise ArgumentError, "#{switch} cannot be #{inspect(value)}"
      true -> raise ArgumentError, "unknown option #{switch}#{did_you_mean(switch, known)}"
    end
  end

  defp did_you_mean(switch, known) do
    case Options.nearest(switch, known) do
      nil -> ""
      near -> ", did you mean #{near}?"
    end
  end

  defp value!(name, text, type) do
    case value(text, type) do
      {:ok, value} -> value
      :error -> raise ArgumentError, "#{switch(name)} cannot be #{inspect(text)}"
    end
  end

  defp value(flag, :boolean) when is_boolean(flag), do: {:ok, flag}
  defp value(text, :float), do: whole(Float.parse(text))

  defp value(text, type) when type in [:integer, :pos_integer, :non_neg_integer],
    do: whole(Integer.parse(text))

  defp value(text, {:in, %Range{}}), do: whole(Integer.parse(text))
  defp value(text, {:in, values}), do: named(text, values)
  defp value(text, {:or, types}), do: Enum.find_value(types, :error, &one_of(text, &1))
  defp value(text, {:list, type}), do: text |> String.split(",") |> each(type)
  defp value(text, type) when type in [:string, :path, :any], do: {:ok, text}
  defp value(text, literal), do: named(text, [literal])

  defp one_of(text, type) do
    with :error <- value(text, type), do: nil
  end

  defp each(texts, type) do
    values = Enum.map(texts, &value(&1, type))
    if :error in values, do: :error, else: {:ok, Enum.map(values, &elem(&1, 1))}
  end

  # `none` is how a command line says nil.
  defp named(text, values) do
    case Enum.find(values, :error, &(text(&1) == text)) do
      :error -> :error
      value -> {:ok, value}
    end
  end

  defp whole({number, ""}), do: {:ok, number}
  defp whole(_other), do: :error

  defp text(nil), do: "none"
  defp text(values) when is_list(values), do: Enum.map_join(values, ",", &text/1)
  defp text(value), do: to_string(value)

  @doc false
  # Names of a Spec's options that no switch sets.
  def left_out, do: Policy.Spec.options() -- Keyword.keys(spec_schema())
end
