defmodule Sconce.Evolve.Kept do
  @moduledoc false
  # Files of archives, strategies and networks.

  alias Sconce.{Error, Options}
  alias Sconce.Evolve.Tensors
  alias Sconce.Native.Call

  @doc "Writes a file by `write`, which gets a reference and the path."
  @spec save(Path.t(), (reference, Path.t() -> term)) :: :ok | {:error, Error.t()}
  def save(path, write) do
    path = Options.path!(path)
    with {:ok, true} <- Call.in_background(&write.(&1, path)), do: :ok
  end

  @doc "Reads a file by `read`; `wrap` makes the struct of its result and of the form in `opts`."
  @spec load(Path.t(), keyword, (reference, Path.t() -> term), (term, atom -> struct)) ::
          {:ok, struct} | {:error, Error.t()}
  def load(path, opts, read, wrap) do
    [as: as] = Options.validate!(opts, Tensors.schema())
    form = Tensors.form!(as)
    path = Options.path!(path)
    with {:ok, made} <- Call.in_background(&read.(&1, path)), do: {:ok, wrap.(made, form)}
  end
end
