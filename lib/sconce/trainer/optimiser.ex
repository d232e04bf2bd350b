defmodule Sconce.Trainer.Optimiser do
  @moduledoc false
  # The optimisers, with the options of each and their defaults.

  alias Sconce.Options

  # Names, defaults and the kind of weight decay are PyTorch's; for optimisers that PyTorch lacks, the paper's. A test
  # compares this table with native/train/src/optimiser/config.rs.
  @adam [beta1: 0.9, beta2: 0.999, eps: 1.0e-8, weight_decay: 0.0]
  @optimisers [
    adamw: [
      options: Keyword.put(@adam, :weight_decay, 0.01),
      decay: :decoupled,
      update: "p -= lr m̂ / (√v̂ + eps)",
      source: "Loshchilov & Hutter 2019, algorithm 2"
    ],
    adam: [
      options: @adam,
      decay: :coupled,
      update: "p -= lr m̂ / (√v̂ + eps)",
      source: "Kingma & Ba 2015, algorithm 1"
    ],
    sgd: [
      options: [momentum: 0.9, nesterov: false, weight_decay: 0.0],
      decay: :coupled,
      update: "m = momentum m + g, p -= lr m; by Nesterov p -= lr (g + momentum m)",
      source: "Polyak 1964; Sutskever et al. 2013"
    ],
    rmsprop: [
      options: [beta2: 0.99, eps: 1.0e-8, weight_decay: 0.0],
      decay: :coupled,
      update: "p -= lr g / (√v + eps)",
      source: "Tieleman & Hinton 2012; `beta2` is PyTorch's alpha"
    ],
    radam: [
      options: @adam,
      decay: :coupled,
      update: "Adam, without v until its variance is tractable and then rectified",
      source: "Liu et al. 2020, algorithm 2"
    ],
    lamb: [
      options: Keyword.merge(@adam, eps: 1.0e-6, weight_decay: 0.01),
      decay: :own,
      update: "r = m̂ / (√v̂ + eps) + decay p, p -= lr (‖p‖ / ‖r‖) r, a ratio for each parameter",
      source: "You et al. 2020, algorithm 2"
    ],
    adabelief: [
      options: @adam,
      decay: :decoupled,
      update: "Adam with v = beta2 v + (1 - beta2) (g - m)² + eps",
      source: "Zhuang et al. 2020, algorithm 2"
    ],
    yogi: [
      options: Keyword.merge(@adam, eps: 1.0e-3),
      decay: :coupled,
      update: "Adam with v -= (1 - beta2) sign(v - g²) g², from 1e-6",
      source: "Zaheer et al. 2018, algorithm 2"
    ],
    lion: [
      options: [beta1: 0.9, beta2: 0.99, weight_decay: 0.0],
      decay: :decoupled,
      update: "p -= lr sign(beta1 m + (1 - beta1) g), m = beta2 m + (1 - beta2) g",
      source: "Chen et al. 2023, algorithm 2"
    ]
  ]
  # Options that some optimisers do not have.
  @own [:beta1, :beta2, :eps, :momentum, :nesterov]

  def names, do: Keyword.keys(@optimisers)

  @doc "Returns the options of an optimiser with their defaults."
  def options(name), do: @optimisers[name][:options]

  @doc "Raises `ArgumentError` for an option that the chosen optimiser does not have."
  def check!(settings) do
    name = settings[:optimizer]
    own = Keyword.keys(options(name))

    for option <- @own, settings[option] not in [nil, false] do
      Options.known!(option, own, "option of the #{inspect(name)} optimizer")
    end
  end

  @doc "The optimisers as a Markdown table."
  def docs do
    head = "| `:optimizer` | options | update | source |\n|---|---|---|---|\n"

    head <>
      Enum.map_join(@optimisers, "\n", fn {name, row} ->
        "| `#{inspect(name)}` | #{listed(row)} | `#{row[:update]}` | #{row[:source]} |"
      end)
  end

  defp listed(row) do
    Enum.map_join(row[:options], ", ", fn
      {:weight_decay, value} -> "`weight_decay` #{value} (#{row[:decay]})"
      {option, value} -> "`#{option}` #{value}"
    end)
  end
end
