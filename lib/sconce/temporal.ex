defmodule Sconce.Temporal do
  alias Sconce.Options
  alias Sconce.Temporal.Catalogue

  @backbones Catalogue.all()

  @moduledoc """
  How vectors become memory: the backbones of a `Sconce.Policy.Spec`.

  Each reads `[b, t, width]` and gives `[b, t, h]`, the trunk vector of every frame, and the state
  after the last. Read at once or frame by frame, a sequence gives the same numbers.

  #{for {name, backbone} <- @backbones do
    """
    ## `#{inspect(name)}`

    ```text
    #{Enum.join(backbone.formula, "\n")}
    ```

    #{backbone.paper}. State: #{backbone.state}.

    #{Options.docs(backbone.options)}

    """
  end}
  """

  @typedoc "One of `backbones/0`."
  @type backbone :: atom

  @doc """
  The backbones there are.

      iex> Enum.take(Sconce.Temporal.backbones(), 5)
      [:mlp, :lstm, :gru, :sliding_window, :mamba]
  """
  @spec backbones() :: [backbone]
  def backbones, do: unquote(Keyword.keys(@backbones))

  @doc """
  The schema of a backbone's options, see `Sconce.Options`. Raises `ArgumentError` for an unknown one.

      iex> Sconce.Temporal.options(:gru)[:hidden_size][:default]
      256
      iex> Sconce.Temporal.options(:gro)
      ** (ArgumentError) unknown backbone :gro, did you mean :gru?
  """
  @spec options(backbone) :: Options.schema()
  def options(name) do
    Options.known!(name, backbones(), "backbone")
    @backbones[name].options
  end

  @doc """
  Prints the backbones as a table: formula, state, options with their defaults.
  """
  @spec print() :: :ok
  def print do
    for {name, backbone} <- @backbones do
      IO.puts("#{name} (#{backbone.paper})")
      Enum.each(backbone.formula, &IO.puts("  " <> &1))
      IO.puts("  state    #{backbone.state}")
      IO.puts("  options  " <> Enum.map_join(backbone.options, ", ", &default/1) <> "\n")
    end

    :ok
  end

  defp default({name, option}), do: "#{name} #{inspect(option[:default])}"
end
