defmodule Sconce.Trainer.Switches do
  @moduledoc false
  # Converts the switches of a command line to options of a run.

  alias Sconce.{Net, Switches, Temporal}
  alias Sconce.Trainer.Catalogue

  # Switches for options of a Spec. A corpus of vectors has its own embedding and heads; for replays these switches
  # choose among the existing ones.
  @spec_schema [
    embedding: [
      type: {:in, [:melee, :packed]},
      doc: "Embedding of replays: ids in trained tables, or all values as numbers."
    ],
    image: [
      type: {:list, :pos_integer},
      doc:
        "For a corpus of vectors that are images: channels,height,width. A network reads them, see `Sconce.Net.Spec.image/2`."
    ],
    queue_depth: [
      type: :pos_integer,
      doc: "For replays: the number of latest inputs that the policy reads."
    ],
    num_delays: [type: :non_neg_integer, doc: "For replays: the width of the delay id."],
    previous_action: [
      type: :boolean,
      doc: "For replays: whether the policy reads its previous action."
    ],
    backbone: [type: {:in, Temporal.backbones()}, doc: "The part of the policy that remembers."],
    heads: [type: {:in, [:independent, :autoregressive]}, doc: "Heads of the controller."],
    heads_kind: [
      type: {:in, [:independent, :autoregressive]},
      doc: "Kind of the heads of a corpus of vectors."
    ],
    axis_buckets: [type: :pos_integer, doc: "Classes of an axis of a stick."],
    shoulder_buckets: [type: :pos_integer, doc: "Classes of the shoulder button."],
    head_hidden_size: [
      type: :non_neg_integer,
      doc: "Width of the hidden layer of a head; 0 is none."
    ],
    stream_size: [
      type: :pos_integer,
      doc: "Width of the residual stream of autoregressive heads."
    ],
    prior: [type: :boolean, doc: "Adds log P(action | previous action) to the logits."],
    value_head: [type: :boolean, doc: "Adds a head that estimates the return of a frame."],
    critic: [
      type: {:in, [:shared, :separate]},
      doc: "Trunk of the value head: that of the other heads, or a second backbone."
    ]
  ]

  @doc "Returns the schema of the switches of a Spec, including those of every backbone."
  def spec_schema do
    # `--window-size` is the window of training, which a backbone with attention uses too.
    backbones =
      Temporal.schemas()
      |> Enum.concat()
      |> Enum.reject(&match?({:window_size, _spec}, &1))

    # The schema has no defaults, because a default would count as given.
    @spec_schema ++
      for(
        {name, spec} <- Enum.uniq_by(backbones, &elem(&1, 0)),
        do: {name, Keyword.delete(spec, :default)}
      )
  end

  @doc "Converts the options of a command line to those of `Sconce.Trainer.start_link/1`."
  def training(opts) do
    {loss, opts} = Keyword.split(opts, Keyword.keys(Catalogue.schema(:loss)))
    {kind, opts} = Keyword.pop(opts, :loss)

    if kind == :plain and loss != [] do
      raise ArgumentError,
            "#{Switches.switch(loss |> hd() |> elem(0))} does not go with --loss plain"
    end

    {past, opts} = Keyword.split(opts, [:queue_depth, :num_delays, :previous_action])
    {layout, opts} = Keyword.pop(opts, :embedding)
    {image, opts} = Keyword.pop(opts, :image)
    loss(kind, loss, opts) ++ image(image, layout, past) ++ opts
  end

  defp loss(:plain, [], _opts), do: [loss: :plain]
  defp loss(nil, [], _opts), do: []

  # A resumed run gets all loss options, because its recorded ones may differ from the defaults.
  defp loss(:full, said, opts) do
    whole? = opts[:resume] == true and opts[:preset] == nil
    own = for {name, spec} <- Catalogue.schema(:loss), whole?, do: {name, spec[:default]}
    [loss: Keyword.merge(own, said)]
  end

  defp loss(nil, said, _opts), do: [loss: said]

  defp image(nil, layout, past), do: embedding(layout, past)
  defp image(shape, nil, []), do: [embedding: {:net, Net.Spec.image(shape, 64)}]

  defp image(_shape, _layout, _past),
    do: raise(ArgumentError, "--image is for vectors; the other embeddings are for replays")

  defp embedding(nil, []), do: []
  defp embedding(:packed, past), do: [embedding: {:melee, [layout: :packed] ++ past}]
  defp embedding(:melee, []), do: [embedding: :melee]
  defp embedding(_melee, past), do: [embedding: {:melee, past}]
end
