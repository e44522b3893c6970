"""Common English words for rendered text lines."""

from __future__ import annotations

__all__ = ["WORDS"]

_TEXT = """
a able about above account across act add after again age ago air all almost alone along also always am among an and
another answer any appear apple are area arm around as ask at away back bad balance bank base battery be bear beat
because bed been before began behind being below best better between big bird black blue board boat body book both
bottom box boy bring brother brown build built bus busy but buy by call came can car card care carry case cat cause
cell center change charge check city class clean clear close code coffee cold color come common complete contact
control cook cool copy correct could country course cover cross cry cup cut dark data date daughter day dead deal
decide deep delivery depend did differ direct discount do doctor does dog dollar done door down draw dream dress drive
drop dry due during each ear early earth east easy eat edge egg eight else email end engine enough enter equal even
ever every example exit eye face fact fall family far farm fast father feel feet few field fig figure fill final find
fine fire first fish five flow fly follow food foot for force form forward found four free fresh friend from front
fruit full fun game garden gas gave general get girl give glass go gold good got grand great green ground group grow
had half hand happy hard has have he head hear heart heat heavy held help her here high him his hold home horse hot
hour house how hundred ice idea if image in inch index inside into invoice is island item it job join juice jump just
keep key kind king knew know label land language large last late laugh law lay lead learn leave left less let letter
level life light like line list listen little live local long look lost lot love low machine made mail main make man
manager many map mark market may me mean measure meet member memory men menu metal middle might mile milk million mind
minute miss model money month moon more morning most mother mountain move much music must my name near need network
never new next night nine no noise north nose not note nothing notice now number object ocean of off offer office
often oil old on once one only open operator or orange order other our out output over own package page paper parcel
part pass past pay payment people perhaps person phone pick picture piece place plain plan plane plant play please
point poor port position possible power press price print problem produce product public pull push put quality quarter
queen question quick quiet quite radio rain ran reach read ready real receipt record red refund region remember
report rest result return rich ride right river road rock room round rule run runtime safe said sail sale salt same
sand saw say school sea seat second section see seed seem sell send sense sent serial serve set seven several shape
she ship shipping shop short should show side sign silver simple sing single sister sit six size skin sky sleep slow
small smile snow so soft some son song soon sound south space speak special speed spell spring square stand star start
state station stay steel step still stock stone stop store story street strong study subtotal such sugar summer sun
sure surface system table tail take talk tall tax teach team tell ten test text than thank that the their them then
there these they thick thin thing think third this those though thought thousand three through ticket time tiny to
today together told too took top total touch toward town track trade train travel tree true try turn two type under
unit until up update use user valley value version very view voice wait walk wall want warm was wash watch water wave
way we wear weather week weight well went were west what wheel when where which while white who whole why wide wild
will win wind window winter wish with woman wonder wood word work world would write wrong yard year yellow yes yet you
young your zero zone
"""

WORDS = tuple(_TEXT.split())
"""Lower-case words."""
