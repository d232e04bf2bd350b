defmodule Sconce.Loaded do
  @moduledoc false
  # Whether the app has a module of a library that is no dependency. `Code.ensure_loaded?/1` searches all code paths for a
  # missing module, at each call anew: 0.3 ms and more, too long for each frame of a game.

  @doc "Whether the module is loaded or can be. The code paths are searched once."
  @spec loaded?(module) :: boolean
  def loaded?(module),
    do: :erlang.module_loaded(module) or (not missing?(module) and found?(module))

  defp missing?(module), do: :persistent_term.get({__MODULE__, module}, false)

  defp found?(module) do
    found? = Code.ensure_loaded?(module)
    if not found?, do: :persistent_term.put({__MODULE__, module}, true)
    found?
  end
end
