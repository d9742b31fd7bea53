"""What the small files of a checkpoint declare: target, drafter, tokenizer files, generation config, weight headers.

Every fact is read here once, with one set of limits, and the plan, the engine and the formats use the result. Nothing
here loads a tensor. A file that cannot be used is a `CheckpointError` that names the file and the field.
"""
