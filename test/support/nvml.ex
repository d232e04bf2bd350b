defmodule Sconce.Test.Nvml do
  @moduledoc "A fake of the driver's library, see native/cuda/tests/fake/nvml.c."

  import ExUnit.Callbacks, only: [on_exit: 1]
  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  @source "native/cuda/tests/fake/nvml.c"

  @doc """
  Sets `:nvml` to a new fake library until the test ends, and returns the fake's folder. The fake has two cards: an RTX
  4090 with 24564 MiB, 4521 of them used, and an H200 that is partitioned into instances.
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

  @doc "Sets `:nvml` to a folder without a driver until the test ends."
  def none!, do: use!(tmp_dir!("nvml"))

  @doc "Changes settings of the fake, such as `card1: 15`."
  def set!(folder, settings) do
    lines = for {name, value} <- settings, do: "#{name}=#{value}\n"
    File.write!(Path.join(folder, "fake.conf"), lines)
  end

  defp use!(path) do
    Application.put_env(:sconce, :nvml, path)
    on_exit(fn -> Application.delete_env(:sconce, :nvml) end)
  end
end
