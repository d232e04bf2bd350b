defmodule Sconce.Trainer.Switches do
  @moduledoc false
  # What a command line says of a training, and the options that this makes.

  alias Sconce.{Switches, Temporal}
  alias Sconce.Trainer.Catalogue

  # Parts of a Spec that a command line can say. Embedding and heads of a corpus of vectors are its
  # own; of replays these choose among what there is.
  @spec_schema [
    embedding: [
      type: {:in, [:melee, :packed]},
      doc: "Of replays: ids in trained tables, or all as plain numbers."
    ],
    queue_depth: [type: :pos_integer, doc: "Of replays: latest inputs that the policy reads."],
    num_delays: [type: :non_neg_integer, doc: "Of replays: width of the delay id."],
    backbone: [type: {:in, Temporal.backbones()}, doc: "What remembers."],
    heads: [type: {:in, [:independent, :autoregressive]}, doc: "Of the controller."],
    heads_kind: [type: {:in, [:independent, :autoregressive]}, doc: "Of a corpus' own heads."],
    axis_buckets: [type: :pos_integer, doc: "Steps of a stick's axis."],
    shoulder_buckets: [type: :pos_integer, doc: "Steps of the shoulder."],
    head_hidden_size: [type: :non_neg_integer, doc: "Hidden layer of a head; 0 is none."],
    stream_size: [type: :pos_integer, doc: "Residual stream of autoregressive heads."],
    prior: [type: :boolean, doc: "Adds log P(action | previous action) to the logits."],
    value_head: [type: :boolean, doc: "A head that says what a frame is worth."]
  ]

  @doc "The schema of the Spec's switches, those of every backbone among them."
  def spec_schema do
    # A window is the training's, which hands it to a backbone that attends.
    backbones =
      Temporal.backbones()
      |> Enum.flat_map(&Temporal.options/1)
      |> Enum.reject(&match?({:window_size, _spec}, &1))

    # A default would claim to be given.
    @spec_schema ++
      for(
        {name, spec} <- Enum.uniq_by(backbones, &elem(&1, 0)),
        do: {name, Keyword.delete(spec, :default)}
      )
  end

  @doc "Options of `Sconce.Trainer.start_link/1` from those of a command line."
  def training(opts) do
    {loss, opts} = Keyword.split(opts, Keyword.keys(Catalogue.schema(:loss)))
    {kind, opts} = Keyword.pop(opts, :loss)

    if kind == :plain and loss != [] do
      raise ArgumentError,
            "#{Switches.switch(loss |> hd() |> elem(0))} does not go with --loss plain"
    end

    {past, opts} = Keyword.split(opts, [:queue_depth, :num_delays])
    {layout, opts} = Keyword.pop(opts, :embedding)
    loss(kind, loss, opts) ++ embedding(layout, past) ++ opts
  end

  defp loss(:plain, [], _opts), do: [loss: :plain]
  defp loss(nil, [], _opts), do: []

  # To a run that goes on, whose loss may be another, all of it is said.
  defp loss(:full, said, opts) do
    whole? = opts[:resume] == true and opts[:preset] == nil
    own = for {name, spec} <- Catalogue.schema(:loss), whole?, do: {name, spec[:default]}
    [loss: Keyword.merge(own, said)]
  end

  defp loss(nil, said, _opts), do: [loss: said]

  defp embedding(nil, []), do: []
  defp embedding(:packed, past), do: [embedding: {:melee, [layout: :packed] ++ past}]
  defp embedding(:melee, []), do: [embedding: :melee]
  defp embedding(_melee, past), do: [embedding: {:melee, past}]
end
