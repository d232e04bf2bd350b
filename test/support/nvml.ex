defmodule Sconce.Test.Nvml do
  @moduledoc "A library that stands in for the driver's, see native/cuda/tests/fake/nvml.c."

  import ExUnit.Callbacks, only: [on_exit: 1]
  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  @source "native/cuda/tests/fake/nvml.c"

  @doc """
  Makes the setting `:nvml` that of a fake of its own, until the test ends; its folder. It is two cards: an
  RTX 4090 of 24564 MiB, of which 4521 are used, and an H200 that is cut into instances.
  """
  def fake!(settings \\ []) do
    folder = tmp_dir!("nvml")
    library = Path.join(folder, "libnvidia-ml.so.1")
    args = ["-shared", "-fPIC", "-O1", "-o", library, @source, "-ldl"]
    {"", 0} = System.cmd("cc", args, stderr_to_stdout: true)
    set!(folder, settings)
    use!(folder)
    folder
  end

  @doc "No driver, until the test ends."
  def none!, do: use!(tmp_dir!("nvml"))

  @doc "Changes what the fake says, as in `card1: 15`."
  def set!(folder, settings) do
    lines = for {name, value} <- settings, do: "#{name}=#{value}\n"
    File.write!(Path.join(folder, "fake.conf"), lines)
  end

  defp use!(path) do
    Application.put_env(:sconce, :nvml, path)
    on_exit(fn -> Application.delete_env(:sconce, :nvml) end)
  end
end
