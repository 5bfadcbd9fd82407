"""placeholder until the engines land"""
from dataclasses import dataclass
@dataclass
class EngineConfig:
    pass
@dataclass
class OracleConfig(EngineConfig):
    mode: str = "solve"
@dataclass
class OpenAIConfig(EngineConfig):
    pass
