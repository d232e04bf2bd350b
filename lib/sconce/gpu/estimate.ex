defmodule Sconce.GPU.Estimate do
  @moduledoc false
  # Sizes by ExPhil's rules of thumb.

  alias Sconce.GPU.{Catalogue, Memory}
  alias Sconce.Options

  @doc "The memory of a training step, in MiB."
  @spec step_mb(keyword) :: non_neg_integer
  def step_mb(opts) do
    opts = Options.validate!(opts, Catalogue.schema(:estimate))
    frames = if opts[:temporal], do: opts[:window_size], else: 1
    numbers = 4 * opts[:param_count] + 10_000 * opts[:batch_size] * frames
    bytes = if opts[:precision] == :f32, do: 4, else: 2
    round(1.2 * numbers * bytes / 1_048_576)
  end

  @doc "The bytes of a checkpoint."
  @spec checkpoint(keyword) :: non_neg_integer
  def checkpoint(opts) do
    opts = Options.validate!(opts, Catalogue.schema(:checkpoint))
    values = if opts[:include_optimizer], do: 3, else: 1
    round(1.1 * (4 * values * opts[:param_count] + 10_000))
  end

  @doc "A warning if a checkpoint reaches a size."
  @spec large_checkpoint(keyword) :: :ok | {:warning, String.t()}
  def large_checkpoint(opts) do
    {[threshold_mb: threshold], own} =
      opts
      |> Options.validate!(Catalogue.schema(:checkpoint_warning))
      |> Keyword.split([:threshold_mb])

    mb = round(checkpoint(own) / 1_048_576)
    slow = "which is slow to save and load: use smaller layers, or fewer"

    if mb < threshold,
      do: :ok,
      else: {:warning, "a checkpoint takes about #{Memory.text(mb)}, #{slow}"}
  end
end
